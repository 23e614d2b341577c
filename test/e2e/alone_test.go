// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAlone: pods come and go while the API server is dead, and while the agent is dead, too. A
// node that boots meanwhile has its static pods again, and they reach other nodes. The pods
// that only the API server knows come back with it.
func TestAlone(t *testing.T) {
	if !ours() {
		t.Log("the agent is of our build")
		return
	}
	buildAgent(t)
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "2", "routed", "containerd2=n2")
		defer k.saveLogs()
		k.agentAccount()
		for _, node := range []string{"n1", "n2"} {
			k.importProbe(node)
			k.startAgent(node)
		}
		k.ready(2*time.Minute, "nodes", "--all")
		k.pod("one", "n1", 0)
		k.pod("far", "n2", 18080)
		k.static("n1", "own")
		k.static("n2", "own")
		k.ready(2*time.Minute, "pods", "one", "far")
		revive := k.killAPIServer()
		k.comeAndGo()
		k.stopAgent("n1", "KILL")
		k.stopAgent("n2", "KILL")
		k.comeAndGo()
		for _, node := range []string{"n1", "n2"} {
			k.bootsAlone(node)
			k.startAgent(node)
		}
		k.reaches("n1", k.attached("n1", "own-n1"), k.attached("n2", "own-n2").Addresses)
		k.reaches("n2", k.attached("n2", "own-n2"), k.attached("n1", "own-n1").Addresses)

		if exec.Command(k.script, "kubectl", "get", "--raw", "/livez").Run() == nil {
			t.Error("the API server was not dead all the time")
		}
		revive()
		k.known("n1", "one")
		k.known("n2", "far")
		k.proveMesh("one", "far")
		k.noLeaks("n1", "one", "own-n1")
		k.noLeaks("n2", "far", "own-n2")
	})
}

// bootsAlone: after a boot, before an agent runs, a node's static pod has a sandbox again, in a
// new namespace.
func (k *cluster) bootsAlone(node string) {
	k.Helper()
	before := k.attached(node, "own-"+node)
	k.reboot(node)
	if after := k.attached(node, "own-"+node); after.NetNS == before.NetNS {
		k.Errorf("%s: pod own-%[1]s has the namespace that it had before the boot, %s", node, after.NetNS)
	}
}

// known waits until the API server has the addresses that a pod got without it.
func (k *cluster) known(node, pod string) {
	k.Helper()
	eventually(k, "the API server knows pod "+pod, func() error {
		list := k.attachments(node, pod)
		in := strings.Fields(k.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"))
		if len(list) != 1 || !list[0].Alive || !slices.Equal(in, list[0].Addresses) {
			return fmt.Errorf("it has %v, the node %+v", in, list)
		}
		return nil
	})
	k.ready(time.Minute, "pod", pod)
}

// static makes a static pod of a node. Its name ends with the node's.
func (k *cluster) static(node, name string) {
	k.Helper()
	raw, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "namespace": "default"},
		"spec": object{
			"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
			"containers": []object{{"name": "probe", "image": probeImage, "imagePullPolicy": "Never"}},
		},
	})
	if err == nil {
		err = os.WriteFile(k.staticFile(node, name), raw, 0o600)
	}
	if err != nil {
		k.Fatal(err)
	}
}

func (k *cluster) staticFile(node, name string) string {
	return k.dir + "/nodes/" + node + "/static/" + name + ".json"
}

// comeAndGo has pods of both nodes come and go, with a way to the other node.
func (k *cluster) comeAndGo() {
	k.Helper()
	k.comesAndGoes("n1", "one", k.attached("n2", "far").Addresses)
	k.comesAndGoes("n2", "far", k.attached("n1", "one").Addresses)
}

// comesAndGoes: on a node, a pod that is new reaches addresses, a known pod whose sandbox dies
// gets another, and of a pod that ends nothing stays.
func (k *cluster) comesAndGoes(node, known string, others []string) {
	k.Helper()
	k.static(node, "late")
	late := k.attached(node, "late-"+node)
	k.reaches(node, late, others)

	before := k.attached(node, known)
	k.killAll(node, before)
	eventually(k, known+" has another sandbox", func() error {
		list := k.attachments(node, known)
		if len(list) != 1 || list[0].NetNS == before.NetNS {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
	k.reaches(node, k.attached(node, known), others)

	if err := os.Remove(k.staticFile(node, "late")); err != nil {
		k.Fatal(err)
	}
	k.gone(node, late)
}

// gone waits until nothing is left of a pod's attachment to a node.
func (k *cluster) gone(node string, a psAttachment) {
	k.Helper()
	eventually(k, a.Pod+" has gone", func() error {
		if left := k.attachments(node, strings.TrimPrefix(a.Pod, "default/")); len(left) > 0 {
			return fmt.Errorf("%+v", left)
		}
		for _, addr := range k.reservations(node) {
			if slices.Contains(a.Addresses, addr) {
				return errors.New(addr + " is reserved")
			}
		}
		return nil
	})
}

// reaches: the probe servers at addresses see a pod of a node by its own addresses.
func (k *cluster) reaches(node string, from psAttachment, addrs []string) {
	k.Helper()
	for i, addr := range addrs {
		eventually(k, from.Pod+" reaches "+addr, func() error {
			out, err := exec.Command(k.script, "node", node, "nsenter", "--net="+from.NetNS, probeProgram(), "who", "tcp", hostPort(addr, probePort)).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			k.seenAs(addr+" by "+from.Pod, strings.TrimSpace(string(out)), from.Addresses[i])
			return nil
		})
	}
}

// killAll kills all processes in a pod's namespace, also the one that holds its sandbox.
func (k *cluster) killAll(node string, a psAttachment) {
	k.Helper()
	killed := 0
	for _, pid := range k.processesIn(node, a) {
		if unix.Kill(pid, unix.SIGKILL) == nil {
			killed++
		}
	}
	if killed < 2 {
		k.Fatalf("killed %d processes of %s, want the container and its sandbox", killed, a.Pod)
	}
}

// processesIn lists the processes in a pod's network namespace.
func (k *cluster) processesIn(node string, a psAttachment) (pids []int) {
	k.Helper()
	var pod unix.Stat_t
	if err := unix.Stat(k.pathOn(node, a.NetNS), &pod); err != nil {
		k.Fatal(err)
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		k.Fatal(err)
	}
	for _, link := range links {
		var st unix.Stat_t
		pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
		if unix.Stat(link, &st) == nil && st.Ino == pod.Ino {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killAPIServer kills the API server. revive starts it again.
func (k *cluster) killAPIServer() (revive func()) {
	k.Helper()
	pid := k.pid("apiserver")
	raw, err := os.ReadFile("/proc/" + pid + "/cmdline")
	if err != nil {
		k.Fatal(err)
	}
	number, _ := strconv.Atoi(pid) // it is the name of a directory in /proc
	if err := unix.Kill(number, unix.SIGKILL); err != nil {
		k.Fatal(err)
	}
	eventually(k, "the API server is dead", func() error {
		if exec.Command(k.script, "kubectl", "get", "--raw", "/livez").Run() == nil {
			return errors.New("it answers")
		}
		return nil
	})
	args := []string{"central", "apiserver"}
	for _, arg := range bytes.Split(bytes.TrimSuffix(raw, []byte{0}), []byte{0}) {
		args = append(args, string(arg))
	}
	return func() {
		k.Helper()
		k.do(args...)
		eventually(k, "the API server answers", func() error { return exec.Command(k.script, "kubectl", "get", "--raw", "/readyz").Run() })
	}
}
