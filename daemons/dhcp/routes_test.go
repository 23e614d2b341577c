// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// A server's new list has a default route whose router nobody reaches. The other route is set, and the old default
// stays. The keeper, and the next one, try again until the kernel takes the route.
func TestRefusedRouteInRenewal(t *testing.T) {
	w := newWorld(t)
	const pool = "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m"
	s := dhcptest.Dnsmasq(t, "br0", pool)
	w.configured("")
	s.Stop()
	dhcptest.Dnsmasq(t, "br0", pool, "--dhcp-authoritative", "--dhcp-option=121,0.0.0.0/0,192.0.2.9,10.99.0.0/16,10.77.0.7")
	has := func(routes ...string) func() bool {
		return func() bool { return reflect.DeepEqual(dhcptest.Routes(t, w.ns), routes) }
	}
	w.passes("the other route", has("0.0.0.0/0 via 10.77.0.1 metric 0", "10.99.0.0/16 via 10.77.0.7 metric 0"))
	before := w.logged("lease renewed")
	w.passes("more renewals", func() bool { return w.logged("lease renewed") >= before+2 })
	if !has("0.0.0.0/0 via 10.77.0.1 metric 0", "10.99.0.0/16 via 10.77.0.7 metric 0")() {
		t.Errorf("later: %q", dhcptest.Routes(t, w.ns))
	}
	if n := w.logged("the routes of the lease before stay"); n != 1 {
		t.Errorf("said %d times", n)
	}
	w.restart()
	w.reach("192.0.2.9/32")
	w.passes("the new default", has("0.0.0.0/0 via 192.0.2.9 metric 0", "10.99.0.0/16 via 10.77.0.7 metric 0"))
	w.passes("the log says so", func() bool { return w.logged("all routes of the lease are set") == 1 })
}

// reach gives the interface a route to a destination on its link.
func (w *world) reach(dst string) {
	w.Helper()
	ns, err := netns.Open(w.ns)
	if err != nil {
		w.Fatal(err)
	}
	c, err := nl.In(ns, "/proc")
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	link, err := c.Link("eth0")
	if err == nil {
		err = c.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: nl.IPNet(netip.MustParsePrefix(dst)), Scope: netlink.SCOPE_LINK})
	}
	if err != nil {
		w.Fatal(err)
	}
}
