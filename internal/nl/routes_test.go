// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestDefaultLink(t *testing.T) {
	_, inside := open(t, "c")
	lo, err := inside.Link("lo")
	must(t, err)
	must(t, inside.LinkSetUp(lo))
	port := func(name string, cidrs ...string) int {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		must(t, inside.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
		link, err := inside.Link(name)
		must(t, err)
		must(t, inside.LinkSetUp(link))
		for _, c := range cidrs {
			addr, err := netlink.ParseAddr(c)
			must(t, err)
			addr.Flags = unix.IFA_F_NODAD
			must(t, inside.AddrAdd(link, addr))
		}
		return link.Attrs().Index
	}
	add := func(r netlink.Route) { t.Helper(); must(t, inside.RouteAdd(&r)) }
	want := func(what string, family int, unicast bool, want int) {
		t.Helper()
		if got, err := inside.DefaultLink(family, unicast); err != nil || got != want {
			t.Errorf("%s: link %d, %v; want %d", what, got, err, want)
		}
	}
	one, two := port("one", "192.0.2.7/24", "2001:db8:1::7/64"), port("two", "198.51.100.7/24", "2001:db8:2::7/64")
	to1, to2 := net.ParseIP("192.0.2.1"), net.ParseIP("198.51.100.1")
	all4, all6 := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	half := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(1, 32)}

	add(netlink.Route{Dst: half, Gw: to1})
	add(netlink.Route{Gw: to1, Table: 100})
	add(netlink.Route{Dst: all4, Type: unix.RTN_UNREACHABLE})
	for _, unicast := range []bool{true, false} {
		want("half of all, another table, one that refuses", unix.AF_INET, unicast, 0)
	}
	add(netlink.Route{Gw: to2, Priority: 200})
	want("one", unix.AF_INET, true, two)
	add(netlink.Route{Dst: all4, MultiPath: []*netlink.NexthopInfo{{LinkIndex: one, Gw: to1}, {LinkIndex: two, Gw: to2}}, Priority: 100})
	want("several next hops", unix.AF_INET, true, one)
	want("the least metric", unix.AF_INET, false, one)

	want("the other family", unix.AF_INET6, false, 0)
	add(netlink.Route{Gw: net.ParseIP("2001:db8:2::1"), Priority: 100})
	add(netlink.Route{Gw: net.ParseIP("2001:db8:1::1"), Priority: 200})
	want("IPv6", unix.AF_INET6, false, two)
	add(netlink.Route{Dst: all6, Type: unix.RTN_UNREACHABLE, Priority: 50, LinkIndex: lo.Attrs().Index})
	want("one that refuses", unix.AF_INET6, true, two)
	want("one that refuses counts", unix.AF_INET6, false, lo.Attrs().Index)
}

func TestRouteTo(t *testing.T) {
	_, c := open(t, "r")
	lo, err := c.Link("lo")
	must(t, err)
	must(t, c.LinkSetUp(lo))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br"
	must(t, c.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	br, err := c.Link("br")
	must(t, err)
	must(t, c.LinkSetUp(br))
	for _, cidr := range []string{"10.1.0.1/24", "fd01::1/64"} {
		addr, err := netlink.ParseAddr(cidr)
		must(t, err)
		addr.Flags = unix.IFA_F_NODAD
		must(t, c.AddrAdd(br, addr))
	}
	for a, want := range map[string]struct {
		link int
		kind uint8
	}{
		"10.1.0.5": {br.Attrs().Index, unix.RTN_UNICAST}, "fd01::5": {br.Attrs().Index, unix.RTN_UNICAST},
		"::ffff:10.1.0.5": {br.Attrs().Index, unix.RTN_UNICAST}, "10.1.0.1": {lo.Attrs().Index, unix.RTN_LOCAL}, "::1": {lo.Attrs().Index, unix.RTN_LOCAL},
	} {
		if link, kind, err := c.RouteTo(netip.MustParseAddr(a)); err != nil || link != want.link || kind != want.kind {
			t.Errorf("%s: link %d, type %d, %v; want %v", a, link, kind, err, want)
		}
	}
	for _, a := range []string{"10.2.0.1", "fd02::1"} {
		if link, _, err := c.RouteTo(netip.MustParseAddr(a)); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("%s: link %d, %v", a, link, err)
		}
	}
}
