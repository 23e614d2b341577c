// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// throw sends a datagram to the port of hears.
func (s *space) throw(t *testing.T, to, text string) {
	t.Helper()
	s.throws(t, "", to, forgedPort, []byte(text))
}

// A host that encrypts drops unencrypted packets from the network's addresses. Its own containers reach
// each other, and packets pass if they come from the link to which the host has a route.
func TestPlain(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	l := newLab(t)
	h1, h2, h3 := l.hosts[0], l.hosts[1], l.hosts[2]
	setup{Routes, "46"}.all(h1, h2, h3)
	talk(t, h1, h2)
	self := setup{WireGuard, "46"}.self(h2)
	for i := range self.Subnets {
		self.Subnets[i].Encrypted = true
	}
	apply := func() { h2.do(func() error { return h2.mesh.Apply(ctx, self, nil) }) }
	for _, dev := range []string{"all", "eth0"} {
		h2.sysctl("net/ipv4/conf/"+dev+"/rp_filter", "0")
	}
	heard := h2.container.hears(t)
	passes := func(from *space, what string, want bool) {
		t.Helper()
		for _, to := range []string{"10.40.2.5", "fd40:2::5"} {
			text := what + " to " + to
			from.throw(t, to, text)
			if got := heard(text); got != want {
				t.Errorf("%s: passes: %v, want %v", text, got, want)
			}
		}
	}
	passes(h1.container, "plain, before", true)
	apply()
	passes(h1.container, "plain", false)
	passes(h2.space, "its own host", true)
	h2.sh("ip route add 10.40.3.0/24 via 192.0.2.3; ip route add fd40:3::/64 via 2001:db8:1::3")
	passes(h3.container, "a link with a route", true)
	for _, closed := range []bool{true, false} {
		for i := range self.Subnets {
			self.Subnets[i].Closed = closed
		}
		apply()
		passes(h3.container, fmt.Sprint("a link with a route, closed ", closed), !closed)
		passes(h2.space, fmt.Sprint("its own host, closed ", closed), true)
	}
	before := h2.rules(t)
	apply()
	if again := h2.rules(t); again != before || !strings.Contains(before, "chain plain_hosts") {
		t.Errorf("a second Sync changed\n%s\nto\n%s", before, again)
	}
	h2.sh("nft flush chain inet patchbay plain_hosts")
	apply()
	passes(h1.container, "plain, after damage", false)
	h2.sh("ip route del 10.40.3.0/24; ip route del fd40:3::/64")
	setup{Routes, "46"}.sync(h2, h1, h2, h3)
	if r := h2.rules(t); strings.Contains(r, "plain_") {
		t.Errorf("without encryption the chain stays:\n%s", r)
	}
	talk(t, h1, h2)
	apply()
	h2.do(func() error { return h2.mesh.Clear(ctx, self) })
	if r := h2.rules(t); strings.Contains(r, "plain_") {
		t.Errorf("Clear left\n%s", r)
	}
}
