// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// sh runs commands in the node and returns what they print.
func (n *liveNode) sh(lines string) (out string) {
	n.Helper()
	must(n.T, n.Conn.Do(func() error {
		b, err := exec.Command("sh", "-ec", lines).CombinedOutput()
		out = string(b)
		return err
	}))
	return out
}

// objects lists what a transport makes: links, addresses, routes, rules, the permanent neighbours and
// forwarding entries, the firewall, and the settings of devices.
func (n *liveNode) objects() string {
	return n.sh(`ip -o link | sed 's/^[0-9]*: \([^:]*\):.*/link \1/'; ip -o addr | sed 's/^[0-9]*: //; s/ \+/ /g'
		for f in -4 -6; do ip $f route show table all | grep -v '^\(local\|broadcast\|multicast\|anycast\) '; ip $f rule; done
		ip neigh show nud permanent; bridge fdb show | sed '/^33:33:\|^01:00:/d'; ls /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf
		nft list ruleset`)
}

// TestTransportChanges: the agents of two live nodes start again with another transport, one after the
// other, in either order, while a pod sends to one of the other node. When both have changed, the
// packets pass, and nothing of the earlier transport is left. It prints what was lost meanwhile.
// `make test` changes to and fro once, and the other node is first on the way back.
func TestTransportChanges(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	nettest.Need(t, nettest.LinkKind("vxlan"))
	changes(t, mesh.Auto, mesh.VXLAN)
}

// TestTransportChangesWireGuard is TestTransportChanges to encryption and back.
func TestTransportChangesWireGuard(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	nettest.Need(t, nettest.LinkKind("vxlan"))
	nettest.Need(t, nettest.LinkKind("wireguard"))
	changes(t, mesh.VXLAN, mesh.WireGuard)
}

// rekeyTimeout is the time after which WireGuard repeats a handshake that had no answer.
const rekeyTimeout = 5 * time.Second

// changes switches the transport of two nodes back and forth.
func changes(t *testing.T, one, other mesh.Transport) {
	a, b := newLiveNodes(t)
	for _, n := range []*liveNode{a, b} {
		n.sh("until ip -6 addr show up0 | grep -q fe80:; do sleep 0.01; done") // it comes after the link's other end is up
	}
	empty := map[*liveNode]string{a: a.objects(), b: b.objects()}
	for _, n := range []*liveNode{a, b} {
		n.runs(one)
	}
	four, six, most := newProbe(a, b, 4), newProbe(b, a, 6), retryEvery/2
	if other == mesh.WireGuard {
		most += 2 * rekeyTimeout // a handshake may begin before the other node has its device
	}
	four.flows("at first")
	six.flows("at first")
	with := map[mesh.Transport]map[*liveNode]string{}
	note := func(transport mesh.Transport) {
		t.Helper()
		for _, n := range []*liveNode{a, b} {
			n.rest()
			now := n.objects()
			if was := with[transport][n]; was != "" && was != now {
				t.Errorf("node %d with %s has\n%s\nand had with it at first\n%s", n.Number, transport, now, was)
			}
			if with[transport] == nil {
				with[transport] = map[*liveNode]string{}
			}
			with[transport][n] = now
		}
	}
	note(one)
	four.look("IPv4 with " + string(one))
	six.look("IPv6 with " + string(one))
	type step struct {
		to            mesh.Transport
		first, second *liveNode
	}
	steps := []step{{other, a, b}, {one, b, a}}
	if draw.All(t) {
		steps = []step{{other, a, b}, {one, a, b}, {other, b, a}, {one, b, a}}
	}
	for _, step := range steps {
		for _, n := range []*liveNode{step.first, step.second} {
			n.stop()
			began := time.Now()
			n.runs(step.to)
			n.await("ready", func() bool { return n.Ready() == nil })
			ready := time.Since(began)
			when := fmt.Sprintf("node %d to %s in %v", n.Number, step.to, ready.Round(time.Millisecond))
			if n == step.second {
				four.flows(when)
				six.flows(when)
				if took := time.Since(began); took > max(most, 10*ready) {
					t.Errorf("%s: answers after %v, as if something had to be tried again", when, took)
				}
			} else {
				time.Sleep(200 * probeEvery) // with a node of each transport
			}
			four.look("IPv4, " + when)
			six.look("IPv6, " + when)
		}
		note(step.to)
	}
	four.stop()
	six.stop()
	for _, n := range []*liveNode{a, b} {
		n.stop()
		must(t, n.Conn.Do(func() error { return n.mesh.Clear(context.Background(), plan.Settings{}.Mesh()) }))
		left, _, _ := strings.Cut(n.objects(), "table inet patchbay") // the table stays
		if left != empty[n] {
			t.Errorf("node %d has\n%s\nand had before any agent\n%s", n.Number, left, empty[n])
		}
	}
}
