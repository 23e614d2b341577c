// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/prefix"
)

// tunnelOf returns a tunnel with one peer for each block.
func tunnelOf(blocks ...string) Tunnel {
	t := Tunnel{Name: "a_44", Port: 4789, VNI: 112}
	for i, text := range blocks {
		p := netip.MustParsePrefix(text)
		t.From = append(t.From, TunnelSource{End: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), First: p.Addr(), Last: prefix.Last(p), Bits: p.Bits()})
	}
	return t
}

// The length that most blocks have gets a set without ranges. When it changes, the old set goes, and no set of another mesh.
func TestTunnelLengths(t *testing.T) {
	c := open(t)
	other := tunnelOf("10.9.0.0/24")
	other.Name = "a"
	c.Queue(GuardTunnel(other))
	for _, step := range []struct {
		blocks []string
		want   map[string]int // elements of each set
	}{
		{nil, map[string]int{"_44": 0}},
		{[]string{"10.1.0.0/24", "10.1.1.0/25", "10.1.2.0/24"}, map[string]int{"_44": 1, "_44/24": 2}},
		{[]string{"10.1.0.0/24", "10.1.1.0/25", "fd00::/64", "fd00::1/128"}, map[string]int{"_44": 1, "_44/24": 1, "_46": 1, "_46/64": 1}},
		{[]string{"10.1.0.0/24", "10.1.1.0/25", "10.1.3.0/25"}, map[string]int{"_44": 1, "_44/25": 2, "_46": 0}},
	} {
		tunnel := tunnelOf(step.blocks...)
		c.Queue(GuardTunnel(tunnel))
		commit(t, c)
		names, err := c.setNames(nftables.TableFamilyINet)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range tunnel.sets() {
			list, err := c.List(set.name)
			if suffix := set.name[len("tunnel_a_44"):]; err != nil || len(list) != step.want[suffix] {
				t.Errorf("%v: set %s has %d elements (%v), want %d", step.blocks, set.name, len(list), err, step.want[suffix])
			}
		}
		if have := setsOfTunnel(names, "a_44"); len(have) != len(tunnel.sets()) {
			t.Errorf("%v: sets %v", step.blocks, have)
		}
		if plan, err := GuardTunnel(tunnel).Plan(c); plan != nil || err != nil {
			t.Errorf("%v: a second time, there is something to do (%v)", step.blocks, err)
		}
		if !slices.Contains(names, "tunnel_a_44/24") {
			t.Errorf("%v: no set of the other mesh: %v", step.blocks, names)
		}
	}
	c.Queue(UnguardTunnel("a_44", false))
	commit(t, c)
	if plan, err := GuardTunnel(other).Plan(c); plan != nil || err != nil {
		t.Errorf("the other mesh lost something (%v)", err)
	}
}
