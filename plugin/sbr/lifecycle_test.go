// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/spec"
)

// TestCheckNotices: CHECK reports the loss of each object that ADD made.
func TestCheckNotices(t *testing.T) {
	without := func(table int, dst string) func(*world) error {
		return func(w *world) error {
			link, err := w.c.Link("net0")
			must(t, err)
			routes, err := w.c.LinkRoutes(link.Attrs().Index, table)
			must(t, err)
			i := slices.IndexFunc(routes, func(r netlink.Route) bool { return r.Dst.String() == dst })
			return w.c.RouteDel(&routes[i])
		}
	}
	noRule := func(src string, table int) func(*world) error {
		return func(w *world) error { return rule{netip.MustParseAddr(src), table}.remove(w.c) }
	}
	for what, damage := range map[string]struct {
		do  func(*world) error
		msg string
	}{
		"rule":          {noRule("10.0.0.2", 100), "no rule from 10.0.0.2 found"},
		"rule of IPv6":  {noRule("fd00::2", 101), "no rule from fd00::2 found"},
		"a route":       {without(100, "192.0.2.0/32"), "route 192.0.2.0/32 via 10.0.0.1 dev net0 not found in table 100"},
		"the subnet":    {without(100, "10.0.0.0/24"), "route 10.0.0.0/24 via <nil> dev net0 not found in table 100"},
		"the default":   {twice(without(101, "::/0")), "route ::/0 via fd00::1 dev net0 not found in table 101"},
		"the interface": {func(w *world) error { return w.c.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "net0"}}) }, "find link net0"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 1)
			must(t, w.call(spec.Add, 0, ""))
			must(t, w.call(spec.Check, 0, ""))
			must(t, damage.do(w))
			if err := w.call(spec.Check, 0, ""); err == nil || !strings.Contains(err.Error(), damage.msg) {
				t.Errorf("%v, want %q", err, damage.msg)
			}
			must(t, w.call(spec.Del, 0, ""))
		})
	}
}

// There are two default routes: the gateway's, and the one that moved.
func twice(do func(*world) error) func(*world) error {
	return func(w *world) error { return errors.Join(do(w), do(w)) }
}

// TestDelFindsItsRules runs DEL with less and less information.
func TestDelFindsItsRules(t *testing.T) {
	bare := func(c *spec.Call) { c.Config = []byte(`{"cniVersion":"1.1.0","name":"net"}`) }
	unlink := func(w *world) {
		link, err := w.c.Link("net0")
		must(t, err)
		must(t, w.c.LinkDel(link))
	}
	noRecord := func(*world) { must(t, os.RemoveAll("/run/patchbay/attachments")) }
	for what, tc := range map[string]struct {
		before []func(*world)
		edit   []func(*spec.Call)
		left   int
	}{
		"no previous result":                  {nil, []func(*spec.Call){bare}, 0},
		"no interface, no previous result":    {[]func(*world){unlink}, []func(*spec.Call){bare}, 0},
		"no record (the reference's)":         {[]func(*world){noRecord}, nil, 0},
		"no record, no result":                {[]func(*world){noRecord}, []func(*spec.Call){bare}, 0},
		"no record, no interface":             {[]func(*world){noRecord, unlink}, nil, 0},
		"a configuration that cannot be read": {nil, []func(*spec.Call){func(c *spec.Call) { c.Config = []byte(`{"cniVersion":"1.1.0","name":"net","table":"x"}`) }}, 0},
		"no namespace":                        {nil, []func(*spec.Call){func(c *spec.Call) { c.NetNS = "" }}, 2},
		"a namespace that is gone":            {nil, []func(*spec.Call){func(c *spec.Call) { c.NetNS = "/run/netns/gone" }}, 2},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 1)
			must(t, w.call(spec.Add, 0, ""))
			for _, do := range tc.before {
				do(w)
			}
			must(t, w.call(spec.Del, 0, "", tc.edit...))
			if rules := w.rules(); len(rules) != tc.left {
				t.Errorf("rules left: %v", rules)
			}
			if _, err := os.Stat("/run/netns/gone"); err == nil {
				t.Error("DEL made a file where the namespace was")
			}
			must(t, w.call(spec.Del, 0, "", tc.edit...))
		})
	}
}

// TestLinkLocalStays checks that neighbours of the interface can still be reached.
func TestLinkLocalStays(t *testing.T) {
	w := newWorld(t, 1)
	must(t, w.call(spec.Add, 0, ""))
	routes, err := w.c.RouteListFiltered(netlink.FAMILY_V6, new(netlink.Route), 0)
	must(t, err)
	for _, r := range routes {
		if r.Dst.String() == "fe80::/64" {
			return
		}
	}
	t.Errorf("main table: %v", routes)
}
