// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/names"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

var _ names.View = (*view)(nil)

func TestView(t *testing.T) {
	addr := netip.MustParseAddr
	w := &world{
		Networks: []store.Network{lan(), {Name: "other", Subnets: prefixes("10.201.0.0/16")}},
		Blocks: []store.Block{
			{Network: "lan", Prefix: prefix("10.200.2.0/24"), Node: "b"}, {Network: "lan", Prefix: prefix("10.200.3.0/24"), Node: "c"},
		},
		Endpoints: []store.Entry{
			// c now holds the block that b held. b's containers do not know this.
			{Network: "lan", ID: "5.x", Node: "b", Addrs: []netip.Addr{addr("10.200.3.7"), addr("192.0.2.1")}, Names: []string{"shared", "lost"}},
			{Network: presence, ID: "host", Node: "b"},
			{Network: "lan", ID: "1.x", Node: "b", Addrs: []netip.Addr{addr("10.200.2.2")}, Names: []string{"Web", "shared"}},
			{Network: "lan", ID: "1.y", Node: "b", Addrs: []netip.Addr{addr("10.200.2.2")}, Names: []string{"Web", "shared"}},
			{Network: "lan", ID: "2.x", Node: "c", Addrs: []netip.Addr{addr("10.200.3.2")}, Names: []string{"shared"}},
			{Network: "lan", ID: "3.x", Node: "me", Addrs: []netip.Addr{addr("10.200.1.9")}, Names: []string{"old"}},
			{Network: "gone", ID: "4.x", Node: "c", Addrs: []netip.Addr{addr("10.7.3.2")}, Names: []string{"web"}},
		},
	}
	v := &view{}
	if _, ok := v.Addrs("lan", "web"); ok || v.Contains("lan", addr("10.200.2.2")) {
		t.Error("an empty view knows a name")
	}
	v.build(w, "me", []container{
		{Network: "lan", ID: "4", Addrs: []netip.Addr{addr("10.200.1.2"), addr("172.17.0.2")}, Names: []string{"mine"}},
		{Network: "unknown", ID: "5", Addrs: []netip.Addr{addr("10.9.1.2")}, Names: []string{"x"}},
	})
	for name, want := range map[string][]netip.Addr{
		"web": {addr("10.200.2.2")}, "shared": {addr("10.200.2.2"), addr("10.200.3.2")}, "mine": {addr("10.200.1.2")}, "old": nil, "lost": nil,
	} {
		if got, ok := v.Addrs("lan", name); !slices.Equal(got, want) || ok != (want != nil) {
			t.Errorf("%s: %v %v", name, got, ok)
		}
		if _, ok := v.Addrs("other", name); ok {
			t.Errorf("%s on another network", name)
		}
	}
	if got := v.Names("lan", addr("10.200.2.2")); !slices.Equal(got, []string{"web", "shared"}) {
		t.Errorf("names: %v", got)
	}
	if !v.Contains("lan", addr("10.200.9.9")) || v.Contains("lan", addr("10.201.0.1")) {
		t.Error("ranges")
	}
}
