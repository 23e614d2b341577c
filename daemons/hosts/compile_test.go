// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/mesh"
)

// lines returns a desired state as text, for the tables of the tests.
func (d *desired) lines() (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for i := range d.parts {
		p := &d.parts[i]
		add("%s: bridge %s %v", p.Network.Name, bridgeName(p.Network.Name), p.gateways())
		if d.keeps(p.Network.Name) && d.confs[p.Network.Name].text == nil {
			add("%s: its configuration stays", p.Network.Name)
		}
	}
	for network, c := range d.confs {
		add("%s: configured, mtu %v, dns %v", network, strings.Contains(string(c.text), `"mtu"`), strings.Contains(string(c.text), `"nameservers"`))
	}
	for _, x := range d.self.Subnets {
		add("%s: fabric %s", x.Network, x.Prefix)
	}
	for _, p := range d.peers {
		add("to %s: %v", p.ID, p.Blocks)
	}
	for addr, network := range d.names {
		add("%s: names at %s", network, addr)
	}
	for network, err := range d.wrong {
		add("%s: not: %v", network, err)
	}
	slices.Sort(out)
	return out
}

func TestCompile(t *testing.T) {
	wide := lan()
	wide.Subnets, wide.BlockBits6 = prefixes("10.200.0.0/16", "fd00:200::/48"), 64
	home := lan()
	home.Name, home.Subnets = "home", prefixes("192.0.2.0/24")
	home.BlockBits4 = 28
	block := func(node, p string) store.Block { return store.Block{Network: "lan", Node: node, Prefix: prefix(p)} }
	mine, theirs := block("me", "10.200.3.0/24"), block("b", "10.200.4.0/24")
	nodes := []store.Node{{ID: "me"}, {ID: "b"}, {ID: "c"}}
	own := map[string][]netip.Prefix{"lan": prefixes("10.200.3.0/24")}
	const fabric = "lan: fabric 10.200.0.0/16"
	for about, c := range map[string]struct {
		w    world
		f    thisHost
		want []string
	}{
		"nothing": {},
		"a network without a block": {
			world{Networks: []store.Network{lan()}}, thisHost{uplink: 1500},
			[]string{"lan: bridge pb-lan []", fabric},
		},
		"a network with one": {
			world{Networks: []store.Network{lan()}, Nodes: nodes, Blocks: []store.Block{mine, theirs}, Own: own}, thisHost{uplink: 1500},
			[]string{"lan: bridge pb-lan [10.200.3.1]", "lan: configured, mtu true, dns false", fabric, "to b: [10.200.4.0/24]"},
		},
		"with our resolver": {
			world{Networks: []store.Network{lan()}, Blocks: []store.Block{mine}}, thisHost{uplink: 1500, dns: []string{"*"}},
			[]string{"lan: bridge pb-lan [10.200.3.1]", "lan: configured, mtu true, dns true", fabric, "lan: names at 10.200.3.1"},
		},
		"without a way to the others": {
			world{Networks: []store.Network{lan()}, Nodes: nodes, Blocks: []store.Block{mine, theirs}, Own: own}, thisHost{},
			[]string{"lan: bridge pb-lan [10.200.3.1]", fabric, "lan: its configuration stays", "to b: [10.200.4.0/24]"},
		},
		"its block is about to be claimed again": {
			world{Networks: []store.Network{lan()}, Nodes: nodes, Blocks: []store.Block{theirs}, Own: own}, thisHost{uplink: 1500},
			[]string{"lan: bridge pb-lan [10.200.3.1]", fabric, "lan: its configuration stays", "to b: [10.200.4.0/24]"},
		},
		"its block became another's": {
			world{Networks: []store.Network{lan()}, Nodes: nodes, Blocks: []store.Block{theirs, block("c", "10.200.3.0/24")}, Own: own}, thisHost{uplink: 1500},
			[]string{"lan: bridge pb-lan [10.200.3.1]", fabric, "to b: [10.200.4.0/24]"},
		},
		"another subnet": {
			world{Networks: []store.Network{wide}, Blocks: []store.Block{mine}, Own: own}, thisHost{uplink: 1500},
			[]string{"lan: bridge pb-lan [10.200.3.1]", fabric, "lan: fabric fd00:200::/48"},
		},
		"a record wider than any block": {
			world{Networks: []store.Network{lan()}, Nodes: nodes, Blocks: []store.Block{mine, block("b", "10.200.0.0/16")}}, thisHost{uplink: 1500},
			[]string{"lan: bridge pb-lan [10.200.3.1]", "lan: configured, mtu true, dns false", fabric},
		},
		"the host's own LAN": {
			world{Networks: []store.Network{home}}, thisHost{uplink: 1500},
			[]string{"home: not: subnet 192.0.2.0/24 contains this host's own address 192.0.2.7"},
		},
		"something in the way": {
			world{Networks: []store.Network{lan()}, Blocks: []store.Block{mine}}, thisHost{uplink: 1500, hinders: func(*store.Network) error { return errors.New("in the way") }},
			[]string{"lan: not: in the way"},
		},
	} {
		c.f.self = store.Node{ID: "me", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}
		c.f.runs = func(string, netip.Prefix) bool { return false }
		if c.f.hinders == nil {
			c.f.hinders = func(*store.Network) error { return nil }
		}
		if got := compile(&c.w, &c.f).lines(); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", about, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// The mesh knows how long a network's blocks are, and the bridge on which it checks sources.
func TestSubnetOfMesh(t *testing.T) {
	n := lan()
	n.Isolate = true
	want := mesh.Subnet{Network: "lan", Prefix: n.Subnets[0], Isolated: true, Block: 24, Bridge: "pb-lan"}
	if got := (&part{plan: plan{Network: n}}).subnet(n.Subnets[0]); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
