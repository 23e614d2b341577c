// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/mesh"
)

// The LAN of a host lies in the range of a network. The host does not take part in that network,
// and does not pass it to the fabric, which would accept and forward the network's packets.
func TestInTheWay(t *testing.T) {
	s := openStore(t)
	bridge(t, "lan0", prefix("10.200.7.9/20"))
	a := newHost(t, s, 1)
	a.start()
	must(t, Admin{s}.Create(t.Context(), lan()))
	until(t, "it is logged", func() bool { return a.log.has("overlaps 10.200.7.9/20, an address of this host on lan0") })
	a.stop()
	a.agent.apply(t.Context(), true)
	if x := a.fabric.subnet(); a.fabric.calls == 0 || x.Network != "" {
		t.Errorf("the fabric got %+v", x)
	}
	if blocks, _, err := list(t.Context(), s.Blocks(), ""); err != nil || len(blocks) > 0 || a.conf("lan") != "" {
		t.Errorf("%v %v", blocks, err)
	}
}

// subnet returns the only subnet of the fabric's last input.
func (f *fakeFabric) subnet() (x mesh.Subnet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.self.Subnets) > 0 {
		x = f.self.Subnets[0]
	}
	return x
}

// A host took part in a network. The network is created again with the LAN's range. The host does
// not take part in it.
func TestInTheWayAgain(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	bridge(t, "lan0", prefix("192.168.7.9/24"))
	a := newHost(t, s, 1)
	a.start()
	a.attach("e1", "lan", a.block("lan").Addr().Next().Next().String(), "web") // while the address is in use, the host remembers its block
	must(t, Admin{s}.Remove(t.Context(), "lan", true))
	until(t, "it is gone", func() bool { return a.conf("lan") == "" })
	recreated := lan()
	recreated.Subnets, recreated.BlockBits4 = prefixes("192.168.0.0/16"), 24
	must(t, Admin{s}.Create(t.Context(), recreated))
	until(t, "it is logged", func() bool { return a.log.has("overlaps 192.168.7.9/24, an address of this host on lan0") })
	a.stop()
	a.agent.apply(t.Context(), true)
	if x := a.fabric.subnet(); x.Network != "" {
		t.Errorf("the fabric got %+v", x)
	}
	if blocks, _, err := list(t.Context(), s.Blocks(), ""); err != nil || len(blocks) > 0 || a.conf("lan") != "" {
		t.Errorf("%v %v", blocks, err)
	}
}

// A host's LAN comes to overlap a network. The network continues on this host, because its
// containers run. It does so even if the host has lost its block of one family.
func TestInTheWayLater(t *testing.T) {
	bridge(t, "lan0", prefix("10.200.7.9/20"))
	a := &Agent{self: "me"}
	a.opts.Paths.Proc = "/proc"
	n := lan()
	n.Subnets, n.BlockBits6 = append(prefixes("fd00:200::/48"), n.Subnets...), 64
	had := map[string][]netip.Prefix{"lan": prefixes("10.200.3.0/24", "fd00:200::/64")}
	for about, w := range map[string]*world{
		"it has both":     {Own: had},
		"it has lost one": {Own: map[string][]netip.Prefix{"lan": prefixes("fd00:200::/64")}, Given: had},
	} {
		if err := a.inTheWay(w, &n); err != nil {
			t.Errorf("%s: %v", about, err)
		}
	}
	if err := a.inTheWay(&world{}, &n); err == nil {
		t.Error("it takes part")
	}
}
