// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// proveForgotten: containerd 1.6 dies between the result of an ADD and its own note of the
// sandbox. It forgets the sandbox, and never calls DEL. ADDs and DELs of other pods detach it.
func (k *cluster) proveForgotten(node string, pods ...string) {
	k.Helper()
	before := len(k.reservations(node))
	k.dieAfterADD(node, "lost")
	k.do("program", node, "containerd")
	if k.programEnded(node + "-kubelet") { // a kubelet may end without containerd
		k.do("program", node, "kubelet")
	}
	k.ready(2*time.Minute, "pod", "lost")
	if got := len(k.reservations(node)); got != before+4 {
		k.Errorf("%d addresses were reserved, now %d: containerd has not forgotten a sandbox", before, got)
	}
	k.node(node, "sh", "-c", "touch -d '1 hour ago' /run/patchbay/attachments/pods/*")
	for range 5 {
		k.pod("passing", node, 0)
		k.ready(2*time.Minute, "pod", "passing")
		k.kubectl("delete", "pod", "passing")
	}
	k.noLeaks(node, append(pods, "lost")...)
	k.kubectl("delete", "pod", "lost")
	k.noLeaks(node, pods...)
}

// dieAfterADD makes a pod, and kills containerd when the pod's ADD has ended, but containerd has not
// read its result. To reach this moment, it stops containerd while the ADD waits for host-local's
// lock.
func (k *cluster) dieAfterADD(node, pod string) {
	k.Helper()
	root := "/proc/" + k.pid(node+"-holder") + "/root"
	lock, err := os.OpenFile(root+"/var/lib/cni/networks/pods/lock", os.O_RDWR, 0)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		k.Fatal(err)
	}
	records := root + "/run/patchbay/attachments/pods/*.host-local"
	had, _ := filepath.Glob(records) // the pattern is valid
	k.pod(pod, node, 0)
	eventually(k, "the ADD waits", func() error {
		if now, _ := filepath.Glob(records); len(now) != len(had)+1 {
			return fmt.Errorf("%d records, there were %d", len(now), len(had))
		}
		return nil
	})
	k.signalTo(node+"-containerd", unix.SIGSTOP)
	lock.Close() //nolint:errcheck // unlocks
	eventually(k, "the ADD has ended", func() error { return k.hasEndedChild(node + "-containerd") })
	k.signalTo(node+"-containerd", unix.SIGKILL)
	eventually(k, "containerd is dead", func() error {
		if !k.programEnded(node + "-containerd") {
			return fmt.Errorf("it runs")
		}
		return nil
	})
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

// hasEndedChild returns an error if a program has no child that ended and that it has not waited for.
func (k *cluster) hasEndedChild(name string) error {
	k.Helper()
	pid, children := k.pid(name), 0
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	for _, proc := range all {
		state, parent := processState(proc)
		if parent == pid && state == "Z" {
			return nil
		}
		if parent == pid {
			children++
		}
	}
	return fmt.Errorf("%s has %d children, and all run", name, children)
}

// proveSandboxesKnown: each containerd has a directory for each of its pods' sandboxes, by which
// life.Unknown decides.
func (k *cluster) proveSandboxesKnown(nodes ...string) {
	k.Helper()
	for _, node := range nodes {
		for _, id := range strings.Fields(k.node(node, "ctr", "-n", "k8s.io", "tasks", "ls", "-q")) {
			if !strings.Contains(k.node(node, "ctr", "-n", "k8s.io", "containers", "info", id), `"io.cri-containerd.kind": "sandbox"`) {
				continue
			}
			k.node(node, "test", "-d", "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/"+id)
		}
	}
}
