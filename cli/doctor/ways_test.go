// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// The link of the default route, and the master of a network, are down.
func TestDownLinks(t *testing.T) {
	b := newBench(t)
	nettest.Need(b, nettest.LinkKind("macvlan"))
	b.network("pods", hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, "10.88.0.0/24"))
	b.network("lan", hostLocal("macvlan", `"master":"up1",`, "10.89.0.0/24"))
	b.network("inner", hostLocal("macvlan", `"master":"up9","linkInContainer":true,`, "10.90.0.0/24"))
	up := b.veth("up0", "192.0.2.2/24")
	b.veth("up1", "")
	b.defaultRoute(up, "192.0.2.1", 0)
	b.healthy("ways")
	b.must(netlink.LinkSetDown(b.link("up0p")))
	b.finds("ways", "problem: up0 is down, or has no carrier: through it containers of pods reach")
	b.defaultRoute(b.veth("up2", "198.51.100.2/24"), "198.51.100.1", 100)
	b.finds("ways", "warning: up0 is down, or has no carrier")
	b.must(netlink.LinkDel(b.link("up2")))
	b.must(netlink.LinkSetDown(b.link("up1")))
	b.finds("ways", "problem: up1 is down, or has no carrier: through it containers of lan", "problem: up0")
	b.must(netlink.LinkSetUp(b.link("up0p")))
	b.must(netlink.LinkSetUp(b.link("up1")))
	b.healthy("ways")
}

// Routing rules that refuse a container's packets, or misroute packets to it.
func TestRoutingRules(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, "10.88.0.0/24"))
	up, other := b.veth("up0", "192.0.2.2/24"), b.veth("up1", "198.51.100.2/24")
	b.defaultRoute(up, "192.0.2.1", 0)
	for _, name := range []string{"all", "up0", "up1", "default"} {
		b.sysctl("net/ipv4/conf/"+name+"/rp_filter", "0")
	}
	b.attach("pods", "c1")
	pods := &net.IPNet{IP: net.IPv4(10, 88, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}
	b.must(netlink.RouteAdd(&netlink.Route{LinkIndex: other.Attrs().Index, Dst: pods, Table: 100}))
	const sends, sent = "problem: the host's routing rules refuse what containers of pods send, from 10.88.0.2 to 192.0.2.1", "problem: the host's routing rules refuse what containers of pods are sent, from 192.0.2.1 to 10.88.0.2"
	for name, c := range map[string]struct {
		rule netlink.Rule
		want []string
	}{
		"blackhole":        {netlink.Rule{Src: pods, Type: unix.RTN_BLACKHOLE}, []string{sends}},
		"prohibit":         {netlink.Rule{Dst: pods, Type: unix.RTN_PROHIBIT}, []string{sent}},
		"unreachable":      {netlink.Rule{Type: unix.RTN_UNREACHABLE}, []string{sends, sent}},
		"by interface":     {netlink.Rule{IifName: "br0", Type: unix.RTN_PROHIBIT}, []string{sends}},
		"elsewhere":        {netlink.Rule{Dst: pods, Table: 100}, []string{"problem: lead astray what containers of pods are sent"}},
		"an empty table":   {netlink.Rule{Src: pods, Table: 101}, nil},
		"of other subnets": {netlink.Rule{Src: &net.IPNet{IP: net.IPv4(10, 99, 0, 0).To4(), Mask: net.CIDRMask(24, 32)}, Type: unix.RTN_BLACKHOLE}, nil},
	} {
		b.healthy("ways")
		rule := *netlink.NewRule()
		rule.Src, rule.Dst, rule.Type, rule.IifName = c.rule.Src, c.rule.Dst, c.rule.Type, c.rule.IifName
		rule.Family, rule.Priority = netlink.FAMILY_V4, 100
		if c.rule.Table != 0 {
			rule.Table = c.rule.Table
		}
		b.must(netlink.RuleAdd(&rule))
		t.Log(name)
		b.finds("ways", c.want...)
		b.must(netlink.RuleDel(&rule))
	}
}

// A neighbour entry that was set by hand for a container's address.
func TestNeighbours(t *testing.T) {
	b := newBench(t)
	b.network("pods", hostLocal("bridge", `"bridge":"br0","isDefaultGateway":true,`, "10.88.0.0/24"))
	b.attach("pods", "c1")
	cached, err := b.runtime().Attachments("")
	b.must(err)
	own, err := net.ParseMAC(cached[0].Result.Of(cached[0].Result.IPs[0]).Mac)
	b.must(err)
	for _, c := range []struct {
		ip   net.IP
		mac  net.HardwareAddr
		want []string
	}{
		{net.IPv4(10, 88, 0, 2), own, nil},
		{net.IPv4(10, 88, 0, 77), net.HardwareAddr{2, 0, 0, 0, 0, 9}, nil},
		{net.IPv4(10, 88, 0, 2), net.HardwareAddr{2, 0, 0, 0, 0, 9}, []string{"problem: pods/c1: the host has a permanent neighbour 10.88.0.2 on br0 with the Ethernet address 02:00:00:00:00:09"}},
	} {
		b.must(netlink.NeighSet(&netlink.Neigh{LinkIndex: b.link("br0").Attrs().Index, State: netlink.NUD_PERMANENT, IP: c.ip, HardwareAddr: c.mac}))
		b.finds("ways", c.want...)
	}
}
