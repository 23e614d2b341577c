// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// proveForgotten: containerd loses its record of a pod's sandbox, and never calls DEL. The ADDs and
// DELs of other pods detach the sandbox.
func (k *cluster) proveForgotten(node string, pods ...string) {
	k.Helper()
	before := len(k.reservations(node))
	k.pod("lost", node, 0)
	k.ready(2*time.Minute, "pod", "lost")
	k.forget(node, k.attached(node, "lost"))
	k.ready(2*time.Minute, "pod", "lost")
	eventually(k, "pod lost has another sandbox", func() error {
		if got := len(k.reservations(node)); got != before+4 {
			return fmt.Errorf("%d addresses were reserved, now %d", before, got)
		}
		return nil
	})
	k.node(node, "sh", "-c", "touch -d '1 hour ago' /run/patchbay/attachments/pods/*")
	k.podsPass(node)
	k.noLeaks(node, append(pods, "lost")...)
	k.kubectl("delete", "pod", "lost")
	k.noLeaks(node, pods...)
}

// forget removes containerd's records of a pod, and restarts containerd, while the kubelet cannot
// interfere.
func (k *cluster) forget(node string, a psAttachment) {
	k.Helper()
	k.signalTo(node+"-kubelet", unix.SIGSTOP)
	k.killAll(node, a)
	ctr := "ctr -a /run/containerd/containerd.sock -n k8s.io "
	k.node(node, "sh", "-ec", "for id in $("+ctr+"containers ls -q); do"+
		" case $("+ctr+"containers info $id) in *"+a.ContainerID+"*) "+
		ctr+"tasks delete -f $id || true; "+ctr+"containers delete $id;; esac; done")
	k.signalTo(node+"-containerd", unix.SIGKILL)
	eventually(k, "containerd is dead", func() error {
		if !k.programEnded(node + "-containerd") {
			return errors.New("it runs")
		}
		return nil
	})
	k.do("program", node, "containerd")
	eventually(k, "containerd answers", func() error { return exec.Command(k.script, "node", node, "ctr", "version").Run() })
	k.signalTo(node+"-kubelet", unix.SIGCONT)
}

// podsPass has pods come and go on a node.
func (k *cluster) podsPass(node string) {
	k.Helper()
	for range 5 {
		k.pod("passing", node, 0)
		k.ready(2*time.Minute, "pod", "passing")
		k.kubectl("delete", "pod", "passing")
	}
}

// proveEmptyResult: libcni's cached result of a pod is empty, so the kubelet cannot stop the pod. It
// can after other pods came and went.
func (k *cluster) proveEmptyResult(node string, pods ...string) {
	k.Helper()
	k.pod("empty", node, 0)
	k.ready(2*time.Minute, "pod", "empty")
	file := "/var/lib/cni/results/pods-" + k.attached(node, "empty").ContainerID + "-eth0"
	k.node(node, "sh", "-ec", "test -s "+file+"; : >"+file+"; touch -d '1 hour ago' "+file)
	k.kubectl("delete", "pod", "empty", "--wait=false")
	eventually(k, "the kubelet cannot stop pod empty", func() error {
		if out := k.kubectl("get", "events", "--field-selector=involvedObject.name=empty"); !strings.Contains(out, "FailedKillPod") {
			return errors.New(out)
		}
		return nil
	})
	k.podsPass(node)
	k.kubectl("wait", "--for=delete", "pod/empty", "--timeout=180s")
	k.noLeaks(node, pods...)
}

func (k *cluster) signalTo(name string, s unix.Signal) {
	k.Helper()
	pid, err := strconv.Atoi(k.pid(name))
	if err == nil {
		err = unix.Kill(pid, s)
	}
	if err != nil {
		k.Fatal(err)
	}
}

// programEnded reports whether a program of a node has ended.
func (k *cluster) programEnded(name string) bool {
	k.Helper()
	state, _ := processState("/proc/" + k.pid(name))
	return state == "" || state == "Z"
}

// proveSandboxesKnown: each containerd has a directory for each of its pods' sandboxes, by which
// life.Unknown decides.
func (k *cluster) proveSandboxesKnown(node string, pods ...string) {
	k.Helper()
	for _, pod := range pods {
		k.node(node, "test", "-d", "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/"+k.attached(node, pod).ContainerID)
	}
}
