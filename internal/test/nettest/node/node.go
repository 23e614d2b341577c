// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package node builds a small world for tests of published ports and firewalls: the test's own
// namespace is the node, with bridges and containers, and a client behind a router plays the
// outside. Use it below nettest.Main.
//
//	client 198.51.100.2 -- router -- 192.0.2.1 node 10.1.0.1 -- bridge -- 10.1.0.5 container
//	2001:db8:2::2                 2001:db8:1::1     fd00:1::1             fd00:1::5
package node

import (
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// The addresses outside.
const (
	Uplink4 = "192.0.2.1"
	Uplink6 = "2001:db8:1::1"
	Client4 = "198.51.100.2"
	Client6 = "2001:db8:2::2"
)

// Node is the node with its surroundings.
type Node struct {
	t      testing.TB
	Host   *Space
	Router *Space
	Client *Space
}

// Space is one network namespace.
type Space struct {
	t    testing.TB
	Name string
	Path string
	conn *nl.Conn
}

// Conn is the netlink socket of the namespace.
func (s *Space) Conn() *nl.Conn { return s.conn }

// New creates the node and the outside. The end of the test removes everything.
func New(t testing.TB) *Node {
	t.Helper()
	host, err := nl.Host("/proc")
	must(t, err)
	t.Cleanup(host.Close)
	n := &Node{t: t, Host: &Space{t: t, Name: "host", conn: host}}
	n.Host.noDAD()
	n.Router, n.Client = n.Space("router"), n.Space("client")
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		n.Host.Sysctl(key, "1")
		n.Router.Sysctl(key, "1")
	}
	Join(n.Host, "uplink", n.Router, "tonode")
	Join(n.Router, "tooutside", n.Client, "eth0")
	n.Host.Address("uplink", Uplink4+"/24", Uplink6+"/64")
	n.Router.Address("tonode", "192.0.2.2/24", "2001:db8:1::2/64")
	n.Router.Address("tooutside", "198.51.100.1/24", "2001:db8:2::1/64")
	n.Client.Address("eth0", Client4+"/24", Client6+"/64")
	n.Host.Default("uplink", "192.0.2.2", "2001:db8:1::2")
	n.Client.Default("eth0", "198.51.100.1", "2001:db8:2::1")
	n.Router.Route("10.0.0.0/8", Uplink4)
	n.Router.Route("fd00::/8", Uplink6)
	return n
}

// Space creates a namespace with nothing but its loopback: a container that a plugin has
// yet to attach.
func (n *Node) Space(name string) *Space {
	n.t.Helper()
	path := nettest.NewNS(n.t, name)
	ns, err := netns.Open(path)
	must(n.t, err)
	conn, err := nl.In(ns, "/proc")
	must(n.t, err)
	n.t.Cleanup(conn.Close)
	s := &Space{t: n.t, Name: name, Path: path, conn: conn}
	must(n.t, conn.LinkSetUp(s.link("lo")))
	s.noDAD()
	return s
}

// noDAD makes IPv6 addresses usable at once, also link-local ones. Without a link-local address
// the kernel finds no neighbour.
func (s *Space) noDAD() {
	s.Sysctl("net/ipv6/conf/all/accept_dad", "0")
	s.Sysctl("net/ipv6/conf/default/accept_dad", "0")
}

// Bridge is a bridge of the node with an address of each family.
type Bridge struct {
	node *Node
	Name string
	Addr []netip.Prefix
}

// Bridge makes a bridge. Addresses are with prefix length.
func (n *Node) Bridge(name string, addrs ...string) *Bridge {
	n.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(n.t, n.Host.conn.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	n.t.Cleanup(func() { n.Host.Delete(name) })
	n.Host.Address(name, addrs...)
	b := &Bridge{node: n, Name: name}
	for _, a := range addrs {
		b.Addr = append(b.Addr, netip.MustParsePrefix(a))
	}
	return b
}

// Container is a namespace on a bridge.
type Container struct {
	*Space
	bridge *Bridge
	veth   string
	addrs  []netip.Prefix
}

// Container makes a container with eth0 on the bridge and the bridge as gateway.
func (b *Bridge) Container(name string, addrs ...string) *Container {
	b.node.t.Helper()
	c := &Container{Space: b.node.Space(name), bridge: b, veth: "v" + name}
	Join(b.node.Host, c.veth, c.Space, "eth0")
	host := b.node.Host
	must(c.t, host.conn.LinkSetMaster(host.link(c.veth), host.link(b.Name)))
	c.Address("eth0", addrs...)
	for _, a := range addrs {
		c.addrs = append(c.addrs, netip.MustParsePrefix(a))
	}
	var gateways []string
	for _, a := range b.Addr {
		gateways = append(gateways, a.Addr().String())
	}
	c.Default("eth0", gateways...)
	return c
}

// Result is what the plugin bridge would return for the container.
func (c *Container) Result() *spec.Result {
	two := 2
	r := &spec.Result{Interfaces: []spec.Interface{
		{Name: c.bridge.Name}, {Name: c.veth}, {Name: "eth0", Sandbox: c.Path}}}
	for _, a := range c.addrs {
		r.IPs = append(r.IPs, spec.IPConfig{Interface: &two, Address: a})
	}
	return r
}

// Join connects two namespaces by a veth pair and sets both ends up.
func Join(a *Space, aName string, b *Space, bName string) {
	a.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: bName}
	if b.conn.NS != nil {
		veth.PeerNamespace = netlink.NsFd(b.conn.NS.Fd())
	}
	must(a.t, a.conn.LinkAdd(veth))
	a.t.Cleanup(func() { a.Delete(aName) })
	a.Up(aName)
	b.Up(bName)
}

// Up sets a link up.
func (s *Space) Up(link string) {
	s.t.Helper()
	must(s.t, s.conn.LinkSetUp(s.link(link)))
}

// Delete removes a link that may already be gone.
func (s *Space) Delete(link string) {
	if l, err := s.conn.Link(link); err == nil {
		if err := s.conn.LinkDel(l); err != nil && !nl.IsNotFound(err) {
			s.t.Error(err)
		}
	}
}

// Address gives a link addresses, at once (no duplicate address detection),
// and sets it up.
func (s *Space) Address(link string, addrs ...string) {
	s.t.Helper()
	l := s.link(link)
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		must(s.t, err)
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		must(s.t, s.conn.AddrAdd(l, addr))
	}
	must(s.t, s.conn.LinkSetUp(l))
}

// Default adds default routes.
func (s *Space) Default(link string, gateways ...string) {
	s.t.Helper()
	l := s.link(link)
	for _, g := range gateways {
		gw := netip.MustParseAddr(g)
		must(s.t, s.conn.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gw.AsSlice()}))
	}
}

// Route adds a route.
func (s *Space) Route(to, via string) {
	s.t.Helper()
	dst, err := netlink.ParseIPNet(to)
	must(s.t, err)
	must(s.t, s.conn.RouteAdd(&netlink.Route{Dst: dst, Gw: netip.MustParseAddr(via).AsSlice()}))
}

// Sysctl sets a key such as net/ipv4/ip_forward.
func (s *Space) Sysctl(key, value string) {
	s.t.Helper()
	must(s.t, s.conn.SetSysctl(key, value))
}

// ReadSysctl returns a key's value.
func (s *Space) ReadSysctl(key string) string {
	s.t.Helper()
	v, err := s.conn.Sysctl(key)
	must(s.t, err)
	return v
}

func (s *Space) link(name string) netlink.Link {
	s.t.Helper()
	l, err := s.conn.Link(name)
	must(s.t, err)
	return l
}

// BridgeNetfilter sets whether frames that a bridge forwards pass the IP firewall (br_netfilter).
// This decides how neighbours reach each other. On a kernel without the module, the test is
// skipped.
func (n *Node) BridgeNetfilter(on bool) {
	n.t.Helper()
	const key = "net/bridge/bridge-nf-call-iptables"
	loaded := nettest.Feature{Name: "module br_netfilter", Probe: func() error {
		_, err := os.Stat("/proc/sys/" + key)
		return err
	}}
	switch {
	case on:
		nettest.Need(n.t, loaded)
		n.Host.Sysctl(key, "1")
		n.Host.Sysctl("net/bridge/bridge-nf-call-ip6tables", "1")
	case loaded.Probe() == nil:
		n.Host.Sysctl(key, "0")
		n.Host.Sysctl("net/bridge/bridge-nf-call-ip6tables", "0")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// LocalnetVia sends a namespace's traffic to 127.0.0.1 out through a link, as an attacker
// would, and accepts the answers.
func (s *Space) LocalnetVia(link, gateway string) {
	s.t.Helper()
	s.Sysctl("net/ipv4/conf/all/route_localnet", "1")
	lo, err := netlink.ParseAddr("127.0.0.1/8")
	must(s.t, err)
	must(s.t, s.conn.AddrDel(s.link("lo"), lo)) // with its routes
	gw := netip.MustParseAddr(gateway)
	dst, err := netlink.ParseIPNet("127.0.0.1/32")
	must(s.t, err)
	must(s.t, s.conn.RouteAdd(&netlink.Route{LinkIndex: s.link(link).Attrs().Index, Dst: dst, Gw: gw.AsSlice()}))
}

// Do runs fn on a thread inside the namespace.
func (s *Space) Do(fn func() error) error { return s.conn.Do(fn) }
