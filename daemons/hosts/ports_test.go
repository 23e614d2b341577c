// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// onBridge creates a namespace behind a port of a bridge.
func onBridge(t *testing.T, bridge netlink.Link, name string, addrs ...string) (inside *nl.Conn, port int) {
	t.Helper()
	ns, err := netns.Open(nettest.NewNS(t, name))
	must(t, err)
	inside, err = nl.In(ns, "/proc")
	must(t, err)
	t.Cleanup(inside.Close)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = name, bridge.Attrs().Index
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(inside.NS.Fd())}))
	link := up(t, name)
	t.Cleanup(func() { _ = netlink.LinkDel(link) })
	far, err := inside.LinkByName("eth0")
	must(t, err)
	for _, a := range addrs {
		must(t, inside.AddrAdd(far, &netlink.Addr{IPNet: nl.IPNet(prefix(a + "/24"))}))
	}
	must(t, inside.LinkSetUp(far))
	return inside, link.Attrs().Index
}

// send sends a datagram to the gateway from an address of the namespace.
func send(t *testing.T, inside *nl.Conn, from string) {
	t.Helper()
	must(t, inside.Do(func() error {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)}, &net.UDPAddr{IP: net.IPv4(10, 200, 3, 1), Port: 53})
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // a test
		_, err = c.Write([]byte("hello"))
		return err
	}))
}

// An address is behind the port of the container that answers for it, however many addresses that
// container has. An address without an answer has no port.
func TestPorts(t *testing.T) {
	bridge(t, "pb-lan", prefix("10.200.3.1/24"))
	link := up(t, "pb-lan")
	one, first := onBridge(t, link, "one", "10.200.3.2")
	two, second := onBridge(t, link, "two", "10.200.3.3", "10.200.3.4")
	p := &ports{proc: "/proc", report: func(_ string, err error) {
		if err != nil {
			t.Error(err)
		}
	}}
	for _, c := range []struct {
		from *nl.Conn
		addr string
		want int
	}{{one, "10.200.3.2", first}, {two, "10.200.3.3", second}, {two, "10.200.3.4", second}} {
		until(t, c.addr+" is at its port", func() bool {
			send(t, c.from, c.addr)
			return p.of("lan", netip.MustParseAddr(c.addr)) == c.want
		})
	}
	for _, unknown := range []string{"10.200.3.99", "10.200.9.9"} {
		if got := p.of("lan", netip.MustParseAddr(unknown)); got != 0 {
			t.Errorf("%s is at %d", unknown, got)
		}
	}
	if got := p.of("other", netip.MustParseAddr("10.200.3.2")); got != 0 {
		t.Errorf("on a network without a bridge: %d", got)
	}
}
