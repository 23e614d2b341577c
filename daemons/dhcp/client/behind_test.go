// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/dhcp/client"
	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// via is a route through a router. Router 0.0.0.0 means that the destination is on the link.
func via(dst, router string) spec.Route {
	r := spec.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(router)}
	if r.GW.IsUnspecified() {
		link := 253
		r.Scope = &link
	}
	return r
}

// If the kernel refuses a route of a new lease, the others are set and the old ones stay, until a later try sets all.
func TestRefusedRoute(t *testing.T) {
	dhcptest.LAN(t, "br0", "10.77.0.1/24")
	ns := nettest.NewNS(t, "c1")
	dhcptest.Quiet(t, ns)
	dhcptest.Plug(t, "br0", ns)
	p, err := client.Find("/proc", ns, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	lease := func(routes ...spec.Route) *client.Lease {
		return &client.Lease{Address: netip.MustParsePrefix("10.77.0.10/24"), Gateway: netip.MustParseAddr("10.77.0.1"), Routes: routes}
	}
	want := func(what string, routes ...string) {
		t.Helper()
		got := dhcptest.Routes(t, ns)
		if !reflect.DeepEqual(got, routes) {
			t.Errorf("%s: %q", what, got)
		}
	}
	dhcptest.Configure(t, ns, "10.77.0.10/24", "10.77.0.1")
	one := lease(via("0.0.0.0/0", "10.77.0.1"))
	two := lease(via("0.0.0.0/0", "192.0.2.9"), via("10.99.0.0/16", "10.77.0.7"))
	_, behind, err := p.Change(one, two)
	if err == nil || len(behind.Missing) != 1 || len(behind.Old) != 1 {
		t.Fatalf("%+v, %v", behind, err)
	}
	want("the old default stays", "0.0.0.0/0 via 10.77.0.1 metric 0", "10.99.0.0/16 via 10.77.0.7 metric 0")

	_, again, err := p.Change(behind.On(two), two)
	if err == nil || !again.Equal(behind) {
		t.Errorf("second try: %+v, %v; want %+v", again, err, behind)
	}
	three := lease(via("0.0.0.0/0", "192.0.2.9"), via("192.0.2.9/32", "0.0.0.0"))
	_, again, err = p.Change(behind.On(two), three) // the default comes before the route to its router
	if err != nil || again.Any() {
		t.Errorf("third lease: %+v, %v", again, err)
	}
	want("all of the new lease, and no other", "0.0.0.0/0 via 192.0.2.9 metric 0")
}
