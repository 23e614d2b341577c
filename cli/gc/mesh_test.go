// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// While a mesh's record exists, its objects stay, whether its agent runs or not. Without the
// record, gc removes them.
func TestMesh(t *testing.T) {
	uplink(t)
	before := leak.Must(t)
	p := paths.Default()
	m, err := mesh.Open(mesh.Options{Paths: p})
	if err != nil {
		t.Fatal(err)
	}
	self := mesh.Self{
		ID: "a", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Subnets: []mesh.Subnet{{Network: "net", Prefix: netip.MustParsePrefix("10.77.0.0/16")}},
		Blocks:  []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}, Exempt: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
	}
	peer := mesh.Peer{
		ID: "b", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Transport: mesh.Routes,
		Blocks: []netip.Prefix{netip.MustParsePrefix("10.77.2.0/24")},
	}
	if err := m.Apply(context.Background(), self, []mesh.Peer{peer}); err != nil {
		t.Fatal(err)
	}
	m.Close()
	exempt := nft.Exempt(self.Blocks[0], self.Exempt[0], mesh.DefaultName)
	stands := func(want bool) {
		t.Helper()
		fw := nft.Open("")
		defer fw.Close() //nolint:errcheck // a test
		if _, ok, err := fw.Get(exempt.Set, exempt.Key); err != nil || ok != want {
			t.Errorf("%s: %v, %v", exempt, ok, err)
		}
		if n := len(routesOf(t, mesh.DefaultProtocol)); (n == 1) != want {
			t.Errorf("%d routes", n)
		}
	}
	for range 2 {
		if report := collect(t, runtimeOf(), nil); len(strayMesh(report)) > 0 || report.Dead() > 0 {
			t.Errorf("%+v", report)
		}
		age(t)
	}
	stands(true)
	if err := os.Remove(filepath.Join(p.Run, "mesh", mesh.DefaultName+".json")); err != nil {
		t.Fatal(err)
	}
	report := collect(t, runtimeOf(), nil)
	if list := strayMesh(report); len(list) != 1 || list[0].State != gc.Unsure || !strings.Contains(list[0].Why, "it has no record, but") {
		t.Errorf("%+v", list)
	}
	stands(true)
	age(t)
	if list := strayMesh(collect(t, runtimeOf(), nil)); len(list) != 1 || !list[0].Removed {
		t.Errorf("%+v", list)
	}
	stands(false)
	collect(t, runtimeOf(), nil) // drops the notes of objects that are gone
	leak.NoLeaks(t, before)
}

func strayMesh(r *gc.Report) (list []*gc.Candidate) {
	for _, s := range r.Stray {
		if s.Objects[0].Kind == "mesh" {
			list = append(list, s)
		}
	}
	return list
}

func routesOf(t *testing.T, protocol netlink.RouteProtocol) []netlink.Route {
	t.Helper()
	list, err := nl.Retry(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// uplink is a link with an underlay address.
func uplink(t *testing.T) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "uplink0"
	link := &netlink.Bridge{LinkAttrs: attrs}
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{netlink.LinkAdd(link), netlink.AddrAdd(link, addr), netlink.LinkSetUp(link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
}
