// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"
	"strings"
	"testing"
)

// With Sources, a host's own packets into the tunnel have these addresses. The routes stay when
// the last container goes, although the host then no longer has its gateway address.
func TestSources(t *testing.T) {
	needVXLAN(t)
	l := newLab(t)
	h1, h2, u := l.hosts[0], l.hosts[1], setup{VXLAN, "46"}
	u.all(h1, h2)
	self := u.self(h1)
	self.Sources = []netip.Addr{netip.MustParseAddr("10.40.1.0"), netip.MustParseAddr("fd40:1::")}
	apply := func() {
		t.Helper()
		h1.do(func() error { return h1.mesh.Apply(ctx, self, u.peers(h1, h2)) })
	}
	apply()
	for to, want := range map[string]string{"10.40.2.5": "10.40.1.0", "fd40:2::5": "fd40:1::"} {
		if got := ask(t, h1.space, h2.container, to); got != want {
			t.Errorf("a process of host 1 to %s: seen as %q, want %q", to, got, want)
		}
	}
	state := func() string { return h1.sh("ip -o addr show dev patchbay-vx; ip route; ip -6 route show proto 112") }
	before := state()
	h1.sh("ip addr flush dev cni0")
	if n := len(h1.list(t, "routes")); n != 2 {
		t.Errorf("without a container the host has %d routes, want 2", n)
	}
	h1.sh("ip addr add 10.40.1.1/24 dev cni0; ip addr add fd40:1::1/64 dev cni0 nodad; ip addr add 10.40.9.9/32 dev patchbay-vx")
	apply()
	if after := state(); after != before {
		t.Errorf("another Apply left\n%swas\n%s", after, before)
	}
	self.Sources = nil
	apply()
	if addrs := h1.sh("ip -o addr show dev patchbay-vx"); strings.Contains(addrs, "10.40.") || strings.Contains(addrs, "fd40:") {
		t.Errorf("addresses stayed: %s", addrs)
	}
}

func TestSourcesRefused(t *testing.T) {
	for _, list := range []string{"10.41.1.0", "10.40.1.0 10.40.1.2", "192.0.2.1"} {
		self := Self{ID: "a", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Blocks: []netip.Prefix{netip.MustParsePrefix("10.40.1.0/24")}}
		for _, text := range strings.Fields(list) {
			self.Sources = append(self.Sources, netip.MustParseAddr(text))
		}
		if _, err := Compile(self, nil, Observed{MTU: 1500}); err == nil || !strings.Contains(err.Error(), "source address") {
			t.Errorf("%s: %v", list, err)
		}
	}
}
