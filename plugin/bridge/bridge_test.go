// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMACPrecedence(t *testing.T) {
	w := newWorld(t)
	const args = `, "args": {"cni": {"mac": "02:00:00:00:00:02"}}`
	const runtime = `, "runtimeConfig": {"mac": "02:00:00:00:00:03"}`
	for i, conf := range []string{dual, dual + args, dual + args + runtime} {
		p := w.Pod("p"+string(rune('a'+i)), conf)
		p.Call.Args = "IgnoreUnknown=1;MAC=02:00:00:00:00:01;K8S_POD_NAME=x"
		p.Add()
		w.Want("mac", p.Result.Interfaces[atContainer].Mac, "02:00:00:00:00:0"+string(rune('1'+i)))
		endpointtest.Must(t, p.Do(spec.Check))
	}
}

// ADD refuses a gateway that conflicts with an address of the bridge.
func TestGatewayConflict(t *testing.T) {
	w := newWorld(t)
	gw := `"bridge": "tbr0", "isGateway": true, `
	w.Pod("a", gw+endpointtest.Static("10.9.0.5/24", "fd09::5/64")).Add()
	w.Pod("b", gw+endpointtest.Static("10.8.0.5/24")).Refused(`"tbr0" already has an IP address different from 10.8.0.1/24`)
	w.Pod("c", gw+endpointtest.Static("fd09::1:5/112")).Refused(`"tbr0" already has an IP address different from fd09::1:1/112`)
	w.Pod("d", gw+endpointtest.Static("fd08::5/64")).Add() // the bridge may have other IPv6 subnets
	w.Want("addresses", addresses(w, "tbr0"), "10.9.0.1/24 fd08::1/64 fd09::1/64")
	w.Pod("e", gw+`"forceAddress": true, `+endpointtest.Static("10.8.0.5/24", "fd09::1:5/112")).Add()
	w.Want("addresses", addresses(w, "tbr0"), "10.8.0.1/24 fd08::1/64 fd09::1:1/112")
}

func addresses(w *endpointtest.World, link string) string {
	w.Helper()
	list, err := w.HostConn().Addrs(w.HostLink(link).Attrs().Index)
	endpointtest.Must(w, err)
	var words []string
	for _, a := range list {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			words = append(words, a.Prefix.String())
		}
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// The bridge keeps its MAC whatever ports come and go, with and without a gateway. A bridge of
// another program keeps its MAC from its first use on.
func TestBridgeMAC(t *testing.T) {
	w := newWorld(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "tbr1"
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	for _, conf := range []string{`"bridge": "tbr0"`, `"bridge": "tbr1", "isGateway": true, ` + endpointtest.Static("10.7.0.5/24")} {
		a := w.Pod("a"+conf[14:15], conf).Add()
		mac := a.Result.Interfaces[atBridge].Mac
		b := w.Pod("b"+conf[14:15], strings.Replace(conf, "0.5", "0.6", 1)+`, "runtimeConfig": {"mac": "02:00:00:00:00:01"}`).Add()
		w.Want("bridge mac", b.Result.Interfaces[atBridge].Mac, mac)
		endpointtest.Must(t, a.Do(spec.Check))
	}
}

// Another program made a bridge and gave it a MAC. As the gateway the bridge keeps this MAC,
// whatever ports come and go. The test begins without ports, with an address, after ports left,
// and with a port of another program.
func TestBridgeKeepsItsOwnMAC(t *testing.T) {
	for name, prepare := range map[string]func(w *endpointtest.World, br netlink.Link){
		"plain":        func(*endpointtest.World, netlink.Link) {},
		"with address": func(w *endpointtest.World, _ netlink.Link) { w.Host.Address("tbr1", "10.7.0.1/24") },
		"with port": func(w *endpointtest.World, br netlink.Link) {
			other := w.Space("other")
			node.Join(w.Host, "oport", other, "eth0")
			endpointtest.Must(w, w.HostConn().LinkSetMaster(w.HostLink("oport"), br))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "tbr1"
			endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
			w.Host.Up("tbr1")
			prepare(w, w.HostLink("tbr1"))
			own := w.HostLink("tbr1").Attrs().HardwareAddr.String()
			for i, ip := range []string{"10.7.0.5/24", "10.7.0.6/24"} {
				p := w.Pod(string(rune('a'+i)), `"bridge": "tbr1", "isGateway": true, "runtimeConfig": {"mac": "02:00:00:00:00:01"}, `+endpointtest.Static(ip))
				endpointtest.Must(t, p.Do(spec.Add))
				w.Want("mac in the result", p.Result.Interfaces[atBridge].Mac, own)
				w.Want("mac with the port", w.HostLink("tbr1").Attrs().HardwareAddr.String(), own)
				endpointtest.Must(t, p.Do(spec.Check))
				endpointtest.Must(t, p.Do(spec.Del))
				w.Want("mac after the port", w.HostLink("tbr1").Attrs().HardwareAddr.String(), own)
			}
		})
	}
}

// A bridge that lost its MAC with its last port gets a fixed MAC.
func TestBridgeWithoutMAC(t *testing.T) {
	w := newWorld(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "tbr1"
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	endpointtest.Must(t, w.Pod("first", `"bridge": "tbr1"`).Add().Do(spec.Del))
	w.Want("mac", w.HostLink("tbr1").Attrs().HardwareAddr.String(), "")
	p := w.Pod("a", `"bridge": "tbr1", "isGateway": true, `+endpointtest.Static("10.7.0.5/24")).Add()
	endpointtest.Must(t, p.Do(spec.Del))
	w.Want("mac after the port", w.HostLink("tbr1").Attrs().HardwareAddr.String(), p.Result.Interfaces[atBridge].Mac)
}

func TestNotABridge(t *testing.T) {
	w := newWorld(t)
	w.Pod("a", `"bridge": "lo"`).Refused(`"lo" already exists but is not a bridge`)
	w.Fails(w.Pod("b", `"bridge": "lo"`).Do(spec.Status), `"lo" already exists but is not a bridge`)
}

// The MTU, metric and table of a route reach the kernel and the result.
func TestRoutesAndMTU(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", `"bridge": "tbr0", "isGateway": true, "mtu": 1400, "ipam": {"type": "static",
		"addresses": [{"address": "10.9.0.5/24", "gateway": "10.9.0.1"}, {"address": "fd09::5/64", "gateway": "fd09::1"}],
		"dns": {"nameservers": ["9.9.9.9"]},
		"routes": [{"dst": "10.1.0.0/16", "mtu": 1300, "advmss": 1200, "priority": 50},
			{"dst": "fd01::/64", "mtu": 1310, "table": 100}, {"dst": "10.2.0.0/16", "gw": "10.9.0.77"},
			{"dst": "10.3.0.0/16", "scope": 0}]}`).Add()
	endpointtest.Must(t, p.Do(spec.Check))
	v4, err := p.Conn().RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: cidr("10.1.0.0/16")}, netlink.RT_FILTER_DST)
	endpointtest.Must(t, err)
	if len(v4) != 1 || v4[0].MTU != 1300 || v4[0].AdvMSS != 1200 || v4[0].Priority != 50 || !v4[0].Gw.Equal(net.ParseIP("10.9.0.1")) {
		t.Errorf("route: %v", v4)
	}
	v6, err := p.Conn().RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: 100}, netlink.RT_FILTER_TABLE)
	endpointtest.Must(t, err)
	if len(v6) != 1 || v6[0].MTU != 1310 || !v6[0].Gw.Equal(net.ParseIP("fd09::1")) {
		t.Errorf("route in table 100: %v", v6)
	}
	for at, i := range p.Result.Interfaces {
		if i.MTU != 1400 {
			t.Errorf("interface %d: mtu %d", at, i.MTU)
		}
	}
	w.Want("dns", p.Result.DNS.Nameservers[0], "9.9.9.9")
}

func cidr(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// An ADD refuses an existing interface before it changes anything, and the DEL that
// runtimes send after the failure leaves the interface alone.
func TestInterfaceExists(t *testing.T) {
	w := newWorld(t)
	a := w.Pod("a", dual).Add()
	other := w.Pod("other", strings.Replace(dual, "tbr0", "tbr9", 1))
	other.Conf = strings.Replace(other.Conf, `"net"`, `"other"`, 1)
	other.Call = a.Call // the same container, another network
	other.Refused(`container veth name ("eth0") peer provided ("`)
	if _, err := w.HostConn().Link("tbr9"); !nl.IsNotFound(err) {
		t.Errorf("the refused ADD made its bridge: %v", err)
	}
	endpointtest.Must(t, other.Do(spec.Del))
	endpointtest.Must(t, a.Do(spec.Check))
	a.Refused(`container veth name ("eth0") peer provided ("`)
	endpointtest.Must(t, a.Do(spec.Check))
}

// The same container id and interface name in another namespace are the same attachment.
func TestSameAttachmentElsewhere(t *testing.T) {
	w := newWorld(t)
	a := w.Pod("a", `"bridge": "tbr0"`).Add()
	b := w.Pod("b", `"bridge": "tbr0"`)
	b.Call.ContainerID = "a"
	b.Refused(`container veth name ("eth0") peer provided ("`)
	endpointtest.Must(t, a.Do(spec.Check))
}

// Another owner's link has the derived name. ADD takes the next name, and DEL leaves that link alone.
func TestNameTaken(t *testing.T) {
	w := newWorld(t)
	taken := owner.Of("net", "a", "eth0").LinkName("veth", 0)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = taken
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "x0"}
	endpointtest.Must(t, w.HostConn().LinkAdd(pair))
	endpointtest.Must(t, w.HostConn().LinkSetAlias(pair, owner.Of("net", "z", "eth0").Alias()))
	a := w.Pod("a", dual)
	for _, recordLost := range []bool{false, true} {
		endpointtest.Must(t, a.Do(spec.Add))
		w.Want("name", a.Result.Interfaces[atHost].Name, owner.Of("net", "a", "eth0").LinkName("veth", 1))
		endpointtest.Must(t, a.Do(spec.Check))
		if recordLost {
			w.LoseRecords()
			a.Call.NetNS = ""
		}
		endpointtest.Must(t, a.Do(spec.Del))
		w.Gone(a.Result.Interfaces[atHost].Name)
	}
	_, err := w.HostConn().Link(taken)
	endpointtest.Must(t, err)
}

// CHECK accepts another path to the namespace, a packet capture on the bridge, and other letter
// case. It still finds real differences.
func TestCheck(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", dual+`, "ipMasq": true, "macspoofchk": true`).Add()
	br, err := w.HostConn().Link("tbr0")
	endpointtest.Must(t, err)
	endpointtest.Must(t, w.HostConn().SetPromiscOn(br))
	for i := range p.Result.Interfaces {
		p.Result.Interfaces[i].Mac = strings.ToUpper(p.Result.Interfaces[i].Mac)
	}
	p.Call.NetNS = "/run/../run/netns/a"
	endpointtest.Must(t, p.Do(spec.Check))
	eth0, err := p.Conn().Link("eth0")
	endpointtest.Must(t, err)
	for _, damage := range []struct {
		text string
		do   func() error
	}{
		{"Failed to match addr " + p.IP(1), func() error { return p.Conn().AddrDel(eth0, parseAddr(p.IP(1)+"/64")) }},
		{"Failed to match addr 10.9.0.1/24 on interface tbr0", func() error { return w.HostConn().AddrDel(br, parseAddr("10.9.0.1/24")) }},
		{"Interface eth0 is down", func() error { return p.Conn().LinkSetDown(eth0) }},
		{"CNI veth created for bridge tbr0 was not found", func() error { return w.HostConn().LinkSetNoMaster(port(w, p)) }},
		{"CNI created interface in container eth0 not found", func() error { return p.Conn().LinkDel(eth0) }},
	} {
		endpointtest.Must(t, damage.do())
		w.Fails(p.Do(spec.Check), damage.text)
	}
}

func parseAddr(s string) *netlink.Addr {
	a, err := netlink.ParseAddr(s)
	if err != nil {
		panic(err)
	}
	return a
}

// Without IPAM the bridge is a switch. CHECK works there; the reference's never did. The
// container's end may be left down for another program.
func TestLayer2(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", `"bridge": "tbr0"`).Add()
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, p.Do(spec.Status))
	down := w.Pod("b", `"bridge": "tbr0", "disableContainerInterface": true`).Add()
	eth0, err := down.Conn().Link("eth0")
	endpointtest.Must(t, err)
	if eth0.Attrs().Flags&net.FlagUp != 0 {
		t.Error("disableContainerInterface: eth0 is up")
	}
	endpointtest.Must(t, down.Do(spec.Check))
}

func TestPromisc(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", `"bridge": "tbr0", "promiscMode": true`).Add()
	endpointtest.Must(t, p.Do(spec.Check))
	br, err := w.HostConn().Link("tbr0")
	endpointtest.Must(t, err)
	endpointtest.Must(t, w.HostConn().SetPromiscOff(br))
	w.Fails(p.Do(spec.Check), "Promisc Mode")
}

// A container's router advertisements do not configure the host (CVE-2020-10749). This holds for
// a bridge of ours and for another program's bridge.
func TestNoRouterAdvertisements(t *testing.T) {
	w := newWorld(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "tbr1"
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	for _, br := range []string{"tbr0", "tbr1"} {
		w.Pod(br, `"bridge": "`+br+`"`).Add()
		w.Want("accept_ra of "+br, w.Host.ReadSysctl("net/ipv6/conf/"+br+"/accept_ra"), "0")
	}
}

// These are the reference's settings in the container.
func TestSettings(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", dual)
	p.Sysctl("net/ipv6/conf/lo/disable_ipv6", "1")
	p.Sysctl("net/ipv6/conf/default/disable_ipv6", "1")
	w.Host.Sysctl("net/ipv4/ip_forward", "0")
	w.Host.Sysctl("net/ipv6/conf/all/forwarding", "0")
	p.Add()
	for key, want := range map[string]string{
		"net/ipv4/conf/eth0/arp_notify": "1", "net/ipv6/conf/eth0/keep_addr_on_down": "1", "net/ipv6/conf/eth0/accept_dad": "0",
		"net/ipv6/conf/lo/disable_ipv6": "0", "net/ipv6/conf/eth0/disable_ipv6": "0",
	} {
		w.Want(key, p.ReadSysctl(key), want)
	}
	w.Want("ip_forward", w.Host.ReadSysctl("net/ipv4/ip_forward"), "1")
	w.Want("forwarding", w.Host.ReadSysctl("net/ipv6/conf/all/forwarding"), "1")
}

// Another project's IPAM plugin may work through the interface, as dhcp does. If it fails, the
// link is deleted.
func TestIPAMNeedsLink(t *testing.T) {
	fail := errors.New("no lease")
	look := func(r *plugin.Request) error {
		ns, err := netns.Open(r.NetNS)
		if err != nil {
			return err
		}
		c, err := nl.In(ns, "/proc")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Link(r.IfName)
		return err
	}
	released := errors.New("no DEL")
	asker := plugin.Plugin{
		Name: "asker", Kind: plugin.IPAM,
		Add: func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
			if err := look(r); err != nil {
				return nil, err
			}
			return &spec.Result{IPs: []spec.IPConfig{{Address: netip.MustParsePrefix("10.9.0.5/24")}}}, fail
		},
		Del: func(_ context.Context, r *plugin.Request) error { released = look(r); return nil },
	}
	w := endpointtest.New(t, &Plugin, &asker)
	t.Cleanup(func() { w.Host.Delete("tbr0") })
	before := leak.Must(t)
	p := w.Pod("a", `"bridge": "tbr0", "isGateway": true, "ipMasq": true, "ipam": {"type": "asker"}`)
	p.Refused("no lease")
	leak.NoLeaks(t, before)
	fail = nil
	p.Add()
	endpointtest.Must(t, p.Do(spec.Check))
	w.Want("addresses", addresses(w, "tbr0"), "10.9.0.1/24")
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, released)
}
