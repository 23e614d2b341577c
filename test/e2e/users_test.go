// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// proveUserNamespace starts a pod with hostUsers: false on a node of containerd 2, whose network
// namespace belongs to the pod's own user namespace. It must reach and be reached as other pods,
// and leave as little.
func (k *cluster) proveUserNamespace(node string, others ...string) {
	k.Helper()
	before := k.state(node)
	k.podWith("users", node, 18082, object{"hostUsers": false})
	k.ready(2*time.Minute, "pod", "users")
	k.ownUsers(node, k.attached(node, "users"))
	users, addrs := k.addrs("users"), k.nodeAddrs(node)
	for i := range users {
		for _, other := range others {
			addr := k.addrs(other)[i]
			for _, network := range []string{"tcp", "udp"} {
				k.seenAs("pod users by "+other, k.ask("", other, network, hostPort(users[i], probePort)), addr)
				k.seenAs(other+" by pod users", k.ask("", "users", network, hostPort(addr, probePort)), users[i])
			}
		}
		k.ask("hairpin through a host port", "users", "tcp", hostPort(addrs[i], 18082))
		k.seenAs("host port of pod users", k.node("n1", probeProgram(), "who", "tcp", hostPort(addrs[i], 18082)), k.nodeAddrs("n1")[i])
	}
	k.kubectl("delete", "pod", "users")
	k.nothingLeft(node, before)
}

// ownUsers checks that a pod's network namespace belongs to a user namespace that is not the
// node's, and that the pod's processes are in it, where root is an ordinary user of the node.
func (k *cluster) ownUsers(node string, pod psAttachment) {
	k.Helper()
	owner, nodes := ownerOf(k.T, k.pathOn(node, pod.NetNS)), userNamespace(k.T, "/proc/self/ns/user")
	if owner == nodes {
		k.Errorf("the network namespace of %s belongs to the user namespace of the node", pod.Pod)
	}
	pids := k.processesIn(node, pod)
	if len(pids) < 2 {
		k.Errorf("%s has the processes %v, want the container and its sandbox", pod.Pod, pids)
	}
	for _, pid := range pids {
		proc := fmt.Sprintf("/proc/%d/", pid)
		if of := userNamespace(k.T, proc+"ns/user"); of != owner {
			k.Errorf("process %d of %s is in user namespace %d, its network namespace belongs to %d, the node has %d", pid, pod.Pod, of, owner, nodes)
		}
		raw, err := os.ReadFile(proc + "uid_map")
		if ids := strings.Fields(string(raw)); err != nil || len(ids) != 3 || ids[0] != "0" || ids[1] == "0" {
			k.Errorf("uid_map of process %d of %s is %q, %v; want root to be an ordinary user", pid, pod.Pod, raw, err)
		}
	}
}

// ownerOf returns the inode of the user namespace that a network namespace belongs to.
func ownerOf(t *testing.T, path string) uint64 {
	t.Helper()
	ns, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	fd, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		t.Fatalf("owner of %s: %v", path, err)
	}
	defer unix.Close(fd)
	return userNamespace(t, fmt.Sprintf("/proc/self/fd/%d", fd))
}

// userNamespace returns the inode of a namespace's file.
func userNamespace(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatalf("stat %s: %v", path, err)
	}
	return st.Ino
}
