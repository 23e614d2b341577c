// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// TestKubelet runs pods on two real nodes with the kubelet and containerd's CRI. Nodes become
// Ready, pods reach each other, and the other node reaches their host ports. Pods are added and
// removed, and a node is rebooted. In the end nothing is left.
func TestKubelet(t *testing.T) {
	onNode(t, func(t *testing.T) {
		k := newCluster(t)
		defer k.saveLogs()
		for _, node := range []string{"n1", "n2"} {
			k.install(node)
		}
		k.ready(time.Minute, "nodes", "--all")
		n1, n2 := k.state("n1"), k.state("n2")

		k.pod("one", "n1", 18080)
		k.pod("two", "n1", 18081)
		k.pod("far", "n2", 18080)
		k.ready(time.Minute, "pods", "--all")
		k.proveTraffic()
		k.noLeaks("n1", "one", "two")
		if out := k.node("n1", patchbay(), "ps"); ours() && (!strings.Contains(out, " default/one ") || !strings.Contains(out, " default/two ")) {
			t.Errorf("ps does not name the pods:\n%s", out)
		}

		k.kubectl("delete", "pod", "one")
		k.noLeaks("n1", "two")
		k.pod("one", "n1", 18080)
		k.ready(time.Minute, "pod", "one")
		k.proveTraffic()

		k.reboot("n1")
		k.restarted("one", "two")
		k.proveTraffic()
		k.noLeaks("n1", "one", "two")

		k.kubectl("delete", "pods", "--all")
		k.nothingLeft("n1", n1)
		k.nothingLeft("n2", n2)
	})
}

// proveTraffic sends requests from pod to pod on one node, from the node, and from the other node
// to the host port. At the host port the client's address must stay.
func (k *cluster) proveTraffic() {
	k.Helper()
	one, two := k.addrs("one"), k.addrs("two")
	for i := range one {
		seen := k.kubectl("exec", "two", "--", "/probe", "who", "tcp", hostPort(one[i], probePort))
		k.seenAs("pod one by pod two", seen, two[i])
		k.node("n1", probeProgram(), "who", "udp", hostPort(two[i], probePort))
	}
	for _, v := range []struct{ to, from string }{{"10.99.0.21", "10.99.0.22"}, {"fd00:99::21", "fd00:99::22"}} {
		for _, port := range []int{18080, 18081} {
			seen := k.node("n2", probeProgram(), "who", "tcp", hostPort(v.to, port))
			k.seenAs(fmt.Sprintf("host port %d from outside", port), seen, v.from)
		}
		k.seenAs("the other node's host port", k.node("n1", probeProgram(), "who", "tcp", hostPort(v.from, 18080)), v.to)
	}
}

// seenAs fails the test unless a probe returned an address.
func (k *cluster) seenAs(what, answer, addr string) {
	k.Helper()
	if seen, err := netip.ParseAddrPort(answer); err != nil || seen.Addr() != netip.MustParseAddr(addr) {
		k.Errorf("%s: seen as %q, want %s", what, answer, addr)
	}
}

// reservations returns the addresses that host-local's files reserve on a node.
func (k *cluster) reservations(node string) []string {
	k.Helper()
	out := k.node(node, "sh", "-c", "cd /var/lib/cni/networks/pods && find . -type f ! -name 'last_reserved_ip.*' ! -name '*lock' | sed 's,^./,,' | sort")
	return strings.Fields(out)
}

// noLeaks fails unless the reserved addresses on a node are exactly the addresses of the pods.
func (k *cluster) noLeaks(node string, pods ...string) {
	k.Helper()
	want := map[string]bool{}
	for _, p := range pods {
		for _, a := range k.addrs(p) {
			want[a] = true
		}
	}
	eventually(k, "addresses of "+node+" are its pods'", func() error {
		got := k.reservations(node)
		for _, a := range got {
			if !want[a] || len(got) != len(want) {
				return fmt.Errorf("reserved are %v, pods have %v", got, want)
			}
		}
		return nil
	})
}

// state returns the state of a node: the network of its namespace, and its files.
func (k *cluster) state(node string) (s leak.State) {
	k.Helper()
	root := "/proc/" + k.pid(node+"-holder") + "/root"
	var dirs []string
	for _, dir := range leak.Dirs() {
		dirs = append(dirs, root+dir)
	}
	err := within("kl-"+node, func() (err error) {
		s, err = leak.Take(dirs...)
		return err
	})
	if err != nil {
		k.Fatal(err)
	}
	return s.Without(kubeletOwn)
}

// kubeletOwn reports whether a line belongs to the iptables chains that the kubelet keeps in
// reserve.
func kubeletOwn(line string) bool {
	return strings.Contains(line, "KUBE-") || strings.HasPrefix(line, "nft") && strings.Contains(line, " mangle")
}

// restarted waits until the kubelet has noticed that the pods' sandboxes are gone and has
// made new ones.
func (k *cluster) restarted(pods ...string) {
	k.Helper()
	for _, p := range pods {
		eventually(k, p+" runs again", func() error {
			count := k.kubectl("get", "pod", p, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
			if count == "0" {
				return errors.New("not restarted yet")
			}
			return nil
		})
	}
	k.ready(2*time.Minute, append([]string{"pod"}, pods...)...)
}

// nothingLeft waits until the kubelet has cleaned up its sandboxes, and then compares. It ignores
// chains that the reference never removes.
func (k *cluster) nothingLeft(node string, before leak.State) {
	k.Helper()
	eventually(k, "nothing is left on "+node, func() error {
		left := k.state(node).Beyond(before).Without(leak.Standing)
		if !ours() {
			left = left.Without(func(line string) bool { return strings.HasPrefix(line, "nft") })
		}
		if len(left) > 0 {
			return fmt.Errorf("left behind:\n%s", left)
		}
		return nil
	})
}
