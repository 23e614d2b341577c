// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/dhcp/client"
	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func setup(addr, gw string) *client.Lease {
	return &client.Lease{Address: netip.MustParsePrefix(addr), Gateway: netip.MustParseAddr(gw), Routes: []spec.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0")}}}
}

func TestChange(t *testing.T) {
	dhcptest.LAN(t, "br0", "10.77.0.1/24")
	ns := nettest.NewNS(t, "c1")
	dhcptest.Quiet(t, ns)
	dhcptest.Plug(t, "br0", ns)
	p, err := client.Find("/proc", ns, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	one, two := setup("10.77.0.10/24", "10.77.0.1"), setup("10.78.0.10/24", "10.78.0.1")
	none, router := &client.Lease{}, setup("10.78.0.10/24", "10.78.0.9")
	want := func(what string, addrs, routes []string) {
		t.Helper()
		if a, r := dhcptest.Addrs(t, ns), dhcptest.Routes(t, ns); !reflect.DeepEqual(a, addrs) || !reflect.DeepEqual(r, routes) {
			t.Errorf("%s: %v %v", what, a, r)
		}
	}
	if _, _, err := p.Change(one, two); err != nil {
		t.Error(err)
	}
	want("nobody used the address", nil, nil)
	if had, _, err := p.Change(one, none); had || err != nil {
		t.Errorf("%t, %v", had, err)
	}
	dhcptest.Configure(t, ns, "10.77.0.10/24", "10.77.0.1")
	for _, tc := range []struct {
		what     string
		from, to *client.Lease
		addr, gw string
	}{{"address", one, two, "10.78.0.10/24", "10.78.0.1"}, {"router", two, router, "10.78.0.10/24", "10.78.0.9"}, {"nothing", router, router, "10.78.0.10/24", "10.78.0.9"}} {
		if _, _, err := p.Change(tc.from, tc.to); err != nil {
			t.Errorf("%s: %v", tc.what, err)
		}
		want(tc.what, []string{tc.addr}, []string{"0.0.0.0/0 via " + tc.gw + " metric 0"})
	}
	if had, _, err := p.Change(router, none); !had || err != nil {
		t.Errorf("%t, %v", had, err)
	}
	want("withdrawn", nil, nil)
	for range 2 {
		if _, _, err := p.Change(none, one); err != nil {
			t.Error(err)
		}
	}
	want("put", []string{"10.77.0.10/24"}, []string{"0.0.0.0/0 via 10.77.0.1 metric 0"})
}

func TestGone(t *testing.T) {
	dhcptest.LAN(t, "br0")
	ns := nettest.NewNS(t, "c1")
	dhcptest.Plug(t, "br0", ns)
	p, err := client.Find("/proc", ns, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	dhcptest.Unplug(t, ns)
	dhcptest.Plug(t, "br0", ns) // another interface of that name
	if err := p.Check(); !errors.Is(err, client.ErrRemoved) {
		q, _ := client.Find("/proc", ns, "eth0")
		t.Errorf("%v: %+v, now %+v", err, p, q)
	}
	if _, err := client.Find("/proc", "/run/netns/absent", "eth0"); !errors.Is(err, client.ErrRemoved) {
		t.Error(err)
	}
	other := *p
	other.ID.Ino++
	if err := other.Check(); !errors.Is(err, client.ErrRemoved) {
		t.Error(err)
	}
}

// Another namespace has the path and the inode of a dead container's.
func TestPlaceOfAnotherNamespace(t *testing.T) {
	dhcptest.LAN(t, "br0", "10.77.0.1/24")
	ns := nettest.NewNS(t, "c1")
	dhcptest.Quiet(t, ns)
	dhcptest.Plug(t, "br0", ns)
	p, err := client.Find("/proc", ns, "eth0")
	if err != nil || p.Cookie == 0 {
		t.Fatalf("%+v, %v", p, err)
	}
	former := *p
	former.Cookie++
	if err := former.Check(); !errors.Is(err, client.ErrRemoved) || p.Same(&former) {
		t.Errorf("a former namespace counts as this one: %v", err)
	}
	former.Cookie = 0 // as a keeper of an earlier release stored it
	if err := former.Check(); err != nil || !p.Same(&former) {
		t.Errorf("without a cookie: %v", err)
	}
}
