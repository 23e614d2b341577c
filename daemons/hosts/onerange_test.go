// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
)

// both is a network of two families.
func both(v4 string) store.Network {
	return store.Network{Name: "two", Subnets: prefixes(v4, "fd00:240::/48"), BlockBits4: 28, BlockBits6: 64, Transport: store.Auto}
}

// round lets all hosts read every event and run all loops.
func (c *cluster) round() {
	for range 3 {
		for _, h := range c.hosts {
			h.catchUp()
			h.tend()
			h.catchUp()
			h.apply()
		}
	}
}

// run adds a container with an address of each block, on the bridge that its ADD creates.
func (h *simHost) run(blocks []netip.Prefix) {
	b := h.bridge("two")
	dir := filepath.Join(h.dir, "cni/networks/two")
	check(os.MkdirAll(dir, 0o755))
	for _, block := range blocks {
		gateway := gatewayOf(block)
		b.addrs = append(b.addrs, netip.PrefixFrom(gateway, block.Bits()))
		b.used = gateway.Next()
		check(os.WriteFile(filepath.Join(dir, b.used.String()), nil, 0o600))
	}
}

// six returns the routes to other hosts in a network's IPv6 range.
func (h *simHost) six() (out []string) {
	for dst, via := range h.Routes {
		if dst.Addr().Is6() {
			out = append(out, fmt.Sprint(dst, " ", via))
		}
	}
	slices.Sort(out)
	return out
}

// A network is created again with another IPv4 range. Its running containers keep all of IPv6,
// even on a host whose LAN has the new range. Such a host gets no configuration. When its
// containers have left, it no longer takes part.
func TestOneRangeAgain(t *testing.T) {
	for _, tc := range []struct {
		about, v4 string
		seen      bool // the watch delivers the removal to each host
		refused   bool
	}{
		{"another range", "10.241.0.0/24", false, false}, {"another range, removal seen", "10.241.0.0/24", true, false},
		{"its LAN", "192.168.0.0/24", false, true}, {"its LAN, removal seen", "192.168.0.0/24", true, true},
		{"its uplink", "192.0.2.0/27", false, true}, {"its uplink, removal seen", "192.0.2.0/27", true, true},
	} {
		t.Run(tc.about, func(t *testing.T) {
			c := newCluster(&chaos.Schedule{Rand: rand.New(rand.NewPCG(1, 0))}, t.TempDir())
			c.calm = true
			h := c.hosts[0]
			h.links.all = append(h.links.all, &simBridge{Bridge: netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lan0", Index: 100}}, addrs: prefixes("192.168.0.9/26")})
			must(t, Admin{c.client}.Create(t.Context(), both("10.240.0.0/24")))
			c.round()
			w, _, _ := h.agent.mirror.snapshot()
			blocks, before := w.Own["two"], h.six()
			if len(blocks) != 2 || len(before) == 0 {
				t.Fatalf("blocks %v, routes %v", blocks, before)
			}
			for _, h := range c.hosts {
				w, _, _ := h.agent.mirror.snapshot()
				h.run(w.Own["two"])
			}
			must(t, Admin{c.client}.Remove(t.Context(), "two", true))
			if tc.seen {
				c.round()
			}
			must(t, Admin{c.client}.Create(t.Context(), both(tc.v4)))
			c.round()
			if after := h.six(); !slices.Equal(after, before) {
				t.Errorf("routes %v, before %v", after, before)
			}
			if _, back := c.hosts[1].Routes[blocks[1]]; !back {
				t.Errorf("the others have no route to %s", blocks[1])
			}
			must(t, h.gatewaysStay())
			if b := h.bridge("two"); len(b.addrs) != 2 {
				t.Errorf("the bridge has %v", b.addrs)
			}
			if h.block("two").IsValid() == tc.refused {
				t.Errorf("its configuration has %v", h.block("two"))
			}
			for _, h := range c.hosts {
				check(os.RemoveAll(filepath.Join(h.dir, "cni/networks/two")))
				h.bridge("two").used = netip.Addr{}
			}
			c.round()
			if left := h.six(); (len(left) == 0) != tc.refused {
				t.Errorf("without containers: routes %v", left)
			}
		})
	}
}
