// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// port makes a bridge that is up, and returns its index.
func port(t *testing.T, c *Conn, name string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(t, c.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	link, err := c.Link(name)
	must(t, err)
	must(t, c.SetUp(link.Attrs().Index, false))
	return link
}

// AddAddr and AddRoute make what the library makes.
func TestAddLikeLibrary(t *testing.T) {
	_, c := open(t, "a")
	one, two := port(t, c, "one"), port(t, c, "two")
	for i, text := range []string{"10.1.0.5/24", "10.1.1.4/31", "10.1.2.9/32", "fd01::5/64", "fd02::9/128"} {
		p := netip.MustParsePrefix(text)
		flags := unix.IFA_F_NODAD
		if p.Addr().Is4() {
			flags = (i % 2) * unix.IFA_F_NOPREFIXROUTE
		}
		must(t, c.AddAddr(one.Attrs().Index, p, flags))
		got := addresses(t, c, one)
		must(t, c.AddrDel(one, &netlink.Addr{IPNet: IPNet(p)}))
		must(t, c.AddrAdd(one, &netlink.Addr{IPNet: IPNet(p), Flags: flags}))
		if want := addresses(t, c, one); got != want {
			t.Errorf("%s: %s\nthe library: %s", p, got, want)
		}
	}
	if err := c.AddAddr(one.Attrs().Index, netip.MustParsePrefix("10.1.0.5/24"), 0); !errors.Is(err, unix.EEXIST) {
		t.Errorf("the second time: %v", err)
	}
	must(t, c.AddAddr(two.Attrs().Index, netip.MustParsePrefix("10.2.0.1/16"), 0))
	must(t, c.AddAddr(two.Attrs().Index, netip.MustParsePrefix("fd05::1/64"), unix.IFA_F_NODAD))
	for _, r := range []Route{
		{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.2.0.2")},
		{Dst: netip.MustParsePrefix("10.3.0.0/16"), Scope: unix.RT_SCOPE_LINK, Src: netip.MustParseAddr("10.2.0.1")},
		{Dst: netip.MustParsePrefix("10.4.0.0/16"), Gateway: netip.MustParseAddr("192.0.2.1"), Flags: unix.RTNH_F_ONLINK, Priority: 7, MTU: 1400, AdvMSS: 1300},
		{Dst: netip.MustParsePrefix("10.5.0.0/16"), Table: 100, AdvMSS: 900},
		{Dst: netip.MustParsePrefix("10.5.0.0/16"), Table: 70000},
		{Dst: netip.MustParsePrefix("::/0"), Gateway: netip.MustParseAddr("fd05::2"), Priority: 3},
		{Dst: netip.MustParsePrefix("fd06::/64"), MTU: 1300, Table: 100, Src: netip.MustParseAddr("fd05::1")},
	} {
		r.Link = two.Attrs().Index
		sameRoute(t, c, r)
	}
}

// sameRoute adds a route and deletes it, with our functions and with the library's.
func sameRoute(t *testing.T, c *Conn, r Route) {
	t.Helper()
	before := routes(t, c)
	must(t, c.AddRoute(r))
	got := routes(t, c)
	must(t, c.ReplaceRoute(r))
	if replaced := routes(t, c); replaced != got || got == before {
		t.Errorf("%+v: added %s\nreplaced %s", r, got, replaced)
	}
	must(t, c.DeleteRoute(r))
	if left := routes(t, c); left != before {
		t.Errorf("%+v leaves %s", r, left)
	}
	if err := c.DeleteRoute(r); !IsNotFound(err) {
		t.Errorf("%+v, deleted twice: %v", r, err)
	}
	same := &netlink.Route{LinkIndex: r.Link, Dst: IPNet(r.Dst), Gw: slice(r.Gateway), Src: slice(r.Src),
		MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Table: r.Table, Scope: netlink.Scope(r.Scope), Flags: r.Flags}
	must(t, c.RouteAddEcmp(same))
	if want := routes(t, c); got != want {
		t.Errorf("%+v: %s\nthe library: %s", r, got, want)
	}
	must(t, c.RouteDel(same))
}

func slice(a netip.Addr) net.IP {
	if !a.IsValid() {
		return nil
	}
	return a.AsSlice()
}

func addresses(t *testing.T, c *Conn, link netlink.Link) (out string) {
	t.Helper()
	list, err := c.AddrList(link, unix.AF_UNSPEC)
	must(t, err)
	for _, a := range list {
		if !a.IP.IsLinkLocalUnicast() {
			out += fmt.Sprintln(a.IPNet, a.Flags, a.Scope, a.Broadcast, a.Peer, a.Label)
		}
	}
	return out
}

func routes(t *testing.T, c *Conn) (out string) {
	t.Helper()
	list, err := c.RouteListFiltered(unix.AF_UNSPEC, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	must(t, err)
	for _, r := range list {
		if r.Table != unix.RT_TABLE_LOCAL && (r.Dst == nil || !r.Dst.IP.IsMulticast() && !r.Dst.IP.IsLinkLocalUnicast()) {
			out += fmt.Sprintln(r.LinkIndex, r.Dst, r.Gw, r.Src, r.Scope, r.Table, r.Priority, r.MTU, r.AdvMSS, r.Flags, r.Protocol, r.Type)
		}
	}
	return out
}

// The methods of the library open its socket, which works in the namespace of the Conn.
func TestLibrary(t *testing.T) {
	_, c := open(t, "l")
	if c.handle != nil {
		t.Fatal("a new Conn has the library's socket")
	}
	port(t, c, "here")
	if _, err := netlink.LinkByName("here"); err == nil {
		t.Error("the link is in the namespace of the process")
	}
	if c.handle == nil {
		t.Error("no socket of the library")
	}
}

// A thread in another namespace calls Host. All requests go there, from any thread.
func TestHostElsewhere(t *testing.T) {
	_, c := open(t, "e")
	port(t, c, "there")
	var host *Conn
	must(t, c.Do(func() (err error) {
		host, err = Host("/proc")
		return err
	}))
	defer host.Close()
	if _, err := host.Link("there"); err != nil {
		t.Errorf("our socket: %v", err)
	}
	if _, err := host.LinkByName("there"); err != nil {
		t.Errorf("the library's socket: %v", err)
	}
}

func TestIPv4Setting(t *testing.T) {
	_, c := open(t, "s")
	index := port(t, c, "br").Attrs().Index
	for conf, key := range map[IPv4Conf]string{RouteLocalnet: "route_localnet", ARPNotify: "arp_notify"} {
		for _, want := range []int32{0, 1, 0} {
			must(t, c.SetIPv4(index, conf, want))
			got, err := c.IPv4Setting(index, conf)
			file, fileErr := c.Sysctl("net/ipv4/conf/br/" + key)
			if err != nil || fileErr != nil || got != want || file != fmt.Sprint(want) {
				t.Errorf("%s: %d, %v; the file: %s, %v; want %d", key, got, err, file, fileErr, want)
			}
		}
	}
	if _, err := c.IPv4Setting(4711, ARPNotify); !IsNotFound(err) {
		t.Errorf("no such link: %v", err)
	}
}
