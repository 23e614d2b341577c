// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"
	"testing"
)

// A host masquerades packets of its containers to other networks, and they come out of the tunnel with its
// underlay address. The kernel of the other host lets them pass, although it reaches this address by
// another link.
func TestOtherNetwork(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	h1, h2, u := l.hosts[0], l.hosts[1], setup{VXLAN, "46"}
	hosts := []*host{h1, h2}
	apply := func() {
		for _, h := range hosts {
			self := u.self(h)
			self.Subnets = nil // the containers of each host are another network
			for _, b := range append(h1.blocks(), h2.blocks()...) {
				self.Subnets = append(self.Subnets, Subnet{Network: b.String(), Prefix: b})
			}
			h.do(func() error { return h.mesh.Apply(ctx, self, u.peers(h, hosts...)) })
		}
	}
	apply()
	h1.masqueraded("10.40.1.5/24")
	if got := ask(t, h1.container, h2.container, "10.40.2.5"); got != "192.0.2.1" {
		t.Errorf("seen as %q", got)
	}
	h1.sh("ip addr del " + netip.PrefixFrom(looseAddr(), 32).String() + " dev patchbay-vx")
	apply()
	state := func() string { return h1.sh("ip -o addr show dev patchbay-vx") }
	before := state()
	apply()
	if after := state(); after != before {
		t.Errorf("another Apply left\n%swas\n%s", after, before)
	}
	if got := ask(t, h2.container, h1.container, "10.40.1.5"); got == "" {
		t.Error("no answer after the address was removed")
	}
}
