// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// A host that begins to forward keeps the default route that it has from a router, and goes on with the router's
// advertisements. A link whose advertisements another program handles is left alone.
func TestForwardingKeepsRouters(t *testing.T) {
	router := newSandbox(t, "router")
	ns, err := netns.Open(nettest.NewNS(t, "host"))
	must(t, err)
	host, err := nl.In(ns, "/proc")
	must(t, err)
	t.Cleanup(host.Close)
	env := &Env{Host: host, Warn: func(err error) { t.Error("warning:", err) }}
	must(t, router.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan"}, PeerName: "up0", PeerNamespace: netlink.NsFd(ns.Fd())}))
	must(t, host.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "other"}}))
	for c, names := range map[*nl.Conn][]string{router: {"lan"}, host: {"up0", "other"}} {
		must(t, c.SetSysctl("net/ipv6/conf/all/accept_dad", "0"))
		for _, name := range names {
			must(t, c.SetSysctl("net/ipv6/conf/"+name+"/accept_dad", "0"))
			l, err := c.Link(name)
			must(t, err)
			must(t, c.LinkSetUp(l))
		}
	}
	must(t, host.SetSysctl("net/ipv6/conf/other/accept_ra", "0"))
	other, err := host.Link("other")
	must(t, err)
	must(t, host.RouteAdd(&netlink.Route{LinkIndex: other.Attrs().Index, Dst: prefixNet("::/0"), Priority: 9, Protocol: unix.RTPROT_RA}))
	advertise(t, router, host)
	_, err = Forwarding{IPv6: true, Failed: "failed"}.Ensure(context.Background(), env)
	must(t, err)
	for link, want := range map[string]string{"up0": "2", "other": "0"} {
		if got, err := host.Sysctl(AcceptRAKey(link)); err != nil || got != want {
			t.Errorf("accept_ra of %s is %s, %v; want %s", link, got, err, want)
		}
	}
	if !hasRouter(t, host) {
		t.Error("the default route is gone")
	}
}

func prefixNet(text string) *net.IPNet {
	p := netip.MustParsePrefix(text)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// advertise sends router advertisements until the host has a default route.
func advertise(t *testing.T, router, host *nl.Conn) {
	t.Helper()
	ra := make([]byte, 16)
	ra[0], ra[4] = 134, 64
	binary.BigEndian.PutUint16(ra[6:], 1800) // lifetime in seconds
	must(t, router.Do(func() error {
		conn, err := net.ListenPacket("ip6:ipv6-icmp", "::")
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // a test
		raw, err := conn.(*net.IPConn).SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255) }); err != nil {
			return err
		}
		for range 100 {
			if _, err := conn.WriteTo(ra, &net.IPAddr{IP: net.ParseIP("ff02::1"), Zone: "lan"}); err != nil {
				t.Log(err) // no address yet
			}
			if hasRouter(t, host) {
				return nil
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Fatal("no default route")
		return nil
	}))
}

func hasRouter(t *testing.T, host *nl.Conn) bool {
	t.Helper()
	up0, err := host.Link("up0")
	must(t, err)
	routes, err := host.RouteListFiltered(unix.AF_INET6, &netlink.Route{LinkIndex: up0.Attrs().Index}, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
	must(t, err)
	return len(routes) > 0
}
