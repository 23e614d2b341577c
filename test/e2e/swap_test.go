// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// TestSwap replaces the reference's plugin directory with ours while containers are attached,
// swaps back, and swaps in again. Each side detaches the other's attachments. No address is given
// out twice, and in the end nothing is left.
func TestSwap(t *testing.T) {
	onNode(t, func(t *testing.T) {
		newOutside(t)
		serve(t, outside, 80)
		for _, main := range []string{"bridge", "ptp"} {
			for _, backend := range []string{"iptables", "nftables"} {
				t.Run(main+"/"+backend, func(t *testing.T) { swap(t, main, backend) })
			}
		}
	})
}

// TestSwapFlushed removes the firewall rules of the reference's attachments. Our CHECK accepts
// the reference's rules in place of ours. Now it must report that there are none.
func TestSwapFlushed(t *testing.T) {
	onNode(t, func(t *testing.T) {
		n, ours := newNetwork(t, "bridge", "1.1.0"), call(t, plugins())
		p := attach(t, call(t, reference()), n, "one", 18080)
		ours.check(n, p)
		run(t, "nft", "flush", "ruleset")
		if err := ours.cni.CheckNetworkList(context.Background(), n.list, p.runtimeConf()); err == nil {
			t.Error("CHECK succeeds though the firewall has no rule at all")
		}
		ours.del(n, p)
	})
}

// swapping is a live node whose plugin directory is replaced.
type swapping struct {
	*testing.T
	n         *network
	ref, ours *caller
	living    map[netip.Addr]string // address to the pod that has it
}

// swap runs the scenario with one main plugin and one of the reference's firewall backends.
func swap(t *testing.T, main, backend string) {
	s := &swapping{T: t, n: newNetwork(t, main, "1.1.0"), ref: call(t, reference()), ours: call(t, plugins()), living: map[netip.Addr]string{}}
	s.n.backend = backend
	s.n.parse(t)
	s.warm()
	before := leak.Must(t)

	one, two, three := s.add(s.ref, "one", 18081), s.add(s.ref, "two", 18082), s.add(s.ref, "three", 18083)
	// Our directory is swapped in.
	four, five := s.add(s.ours, "four", 18084), s.add(s.ours, "five", 18085)
	s.traffic(one, two, three, four, five)
	for _, p := range []*pod{one, two, three, four} {
		s.ours.check(s.n, p)
	}
	s.gone(s.ours, one)
	s.traffic(two, three, four, five)
	// Swap back: the reference detaches what ours made.
	six := s.add(s.ref, "six", 18086)
	s.gone(s.ref, two)
	s.ref.del(s.n, four)
	s.forget(four)
	s.traffic(three, five, six)
	// Swap in again. The port of a pod that the reference detached is free.
	seven := s.add(s.ours, "seven", four.hostPort)
	s.traffic(three, five, six, seven)
	for _, p := range []*pod{three, five, six, seven} {
		s.gone(s.ours, p)
	}
	s.ours.gc(s.n)
	leak.NoLeaks(t, before)
}

// warm lets the reference make what it never removes.
func (s *swapping) warm() {
	s.Helper()
	p := newPod(s.T, "warm", 18999)
	s.ref.add(s.n, p)
	s.ref.del(s.n, p)
	deleteNamespace(s, p.id)
	noAddresses(s.T)
}

// add attaches a pod whose addresses no other may have.
func (s *swapping) add(c *caller, id string, port uint16) *pod {
	s.Helper()
	p := newPod(s.T, id, port)
	c.add(s.n, p)
	serve(s.T, p.id, 80)
	for _, v6 := range []bool{false, true} {
		a := p.addr(v6)
		if other, taken := s.living[a]; taken {
			s.Errorf("%s got the address %v of %s", id, a, other)
		}
		s.living[a] = id
	}
	return p
}

// gone detaches a pod and checks that its port is closed.
func (s *swapping) gone(c *caller, p *pod) {
	s.Helper()
	c.del(s.n, p)
	refused(s.T, outside, node4, p.hostPort)
	s.noMention(p)
	s.forget(p)
}

// forget ends a detached pod; its addresses may be given out again.
func (s *swapping) forget(p *pod) {
	s.Helper()
	deleteNamespace(s, p.id)
	delete(s.living, p.addr(false))
	delete(s.living, p.addr(true))
}

// noMention looks in all that is left for the addresses of a detached pod, as text or as the
// bytes of a firewall rule.
func (s *swapping) noMention(p *pod) {
	s.Helper()
	for _, l := range leak.Must(s) {
		for _, a := range []netip.Addr{p.addr(false), p.addr(true)} {
			if strings.Contains(l+" ", "/"+a.String()+" ") || strings.Contains(l, fmt.Sprintf("%x", a.AsSlice())) {
				s.Errorf("%s is detached and yet: %s", p.id, l)
			}
		}
	}
}

// traffic proves that every pod is reached by its neighbours and through its port.
func (s *swapping) traffic(pods ...*pod) {
	s.Helper()
	for i, p := range pods {
		next := pods[(i+1)%len(pods)]
		for _, v6 := range []bool{false, true} {
			node, world := node4, outside4
			if v6 {
				node, world = node6, outside6
			}
			reaches(s.T, p.id, next.addr(v6), 80, p.addr(v6))
			reaches(s.T, p.id, world, 80, node)
			reaches(s.T, outside, node, p.hostPort, world)
		}
	}
}
