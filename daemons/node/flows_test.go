// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/flows"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/sight"
)

const flowsGroup = 9473

// Connections between real pods are flows between their names, and a new one is told with its names while somebody follows.
func TestFlowsOfANode(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "flows.sock")
	c := &dropsLab{churn: newChurn(t, func(o *Options) {
		l, err := net.Listen("unix", socket)
		must(t, err)
		o.Flows = Flows{Group: flowsGroup, Listener: l, Every: 100 * time.Millisecond}
	})}
	told := make(chan flows.Connection, 100)
	go func() {
		err := sight.Ask(t.Context(), socket, flows.Request{Follow: true, End: "shop/server"}, func(l flows.Line) error {
			if l.Error != "" {
				t.Error(l.Error)
			}
			if l.Connection != nil && l.Connection.Port == 7 {
				told <- *l.Connection
			}
			return nil
		})
		if err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	}()
	c.await("the follower", func() bool {
		return strings.Contains(httpRecorder(c.Handler(), "/metrics"), "\npatchbay_node_flow_followers 1\n")
	})
	c.send(c.friend, c.friend.addr, c.server.addr, 7, 1)
	friend, server := sight.End{Address: c.friend.addr, Pod: "visitors/friend"}, sight.End{Address: c.server.addr, Pod: "shop/server"}
	if n := <-told; n.From != friend || n.To != server || n.Protocol != "udp" {
		t.Errorf("told %+v", n)
	}
	var list []flows.Flow
	c.await("the flow", func() bool {
		list = nil
		must(t, sight.Ask(t.Context(), socket, flows.Request{End: "visitors/friend"}, func(l flows.Line) error {
			if l.Flow != nil && l.Flow.Port == 7 {
				list = append(list, *l.Flow)
			}
			return nil
		}))
		return len(list) > 0
	})
	if f := list[0]; f.From != friend || f.To != server || f.Now != 1 || f.Seen != 1 || len(list) != 1 {
		t.Errorf("the flows are %+v", list)
	}
	metrics := httpRecorder(c.Handler(), "/metrics")
	for _, want := range []string{"patchbay_node_flows ", "patchbay_node_flow_events_total ", "patchbay_node_flow_dump_duration_seconds_count "} {
		if !strings.Contains(metrics, "\n"+want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// Names come from the API: of pods with addresses of their own, and of nodes.
func TestFlowNames(t *testing.T) {
	w := newWitness()
	s := stateWith()
	node := netip.MustParseAddr("10.0.0.1")
	bridge := netip.MustParseAddr("10.244.1.1")
	s.Nodes[0].Addresses, s.Local = []netip.Addr{node}, []netip.Addr{bridge}
	done := policy.Pod{Namespace: "shop", Name: "done", Phase: "Succeeded", Addresses: slices.Clone(s.Pods[0].Addresses)}
	s.Pods = append(s.Pods, done, policy.Pod{Namespace: "kube-system", Name: "proxy", HostNetwork: true, Phase: "Running", Addresses: []netip.Addr{node}})
	w.expect(s, program(t, s))
	n := flowNames{node: "n1", witness: w}
	all, stranger := n.all(), netip.MustParseAddr("8.8.8.8")
	for a, want := range map[netip.Addr]sight.End{
		s.Pods[0].Addresses[0]: {Pod: "shop/web"}, node: {Node: "n1"}, bridge: {Node: "n1"}, stranger: {},
	} {
		want.Address = a
		if got, one := all(a), n.one(a); got != want || one != want {
			t.Errorf("%s is %+v and %+v, want %+v", a, got, one, want)
		}
	}
}
