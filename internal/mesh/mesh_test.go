// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var ctx = context.Background()

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// needVXLAN skips tests of the tunnel on a kernel without VXLAN.
func needVXLAN(t testing.TB) {
	t.Helper()
	nettest.Need(t, nettestVXLAN())
}

// lab is hosts on a switch, and a router with one more host behind it:
//
//	h1 .1  h2 .2  h3 .3      192.0.2.0/24, 2001:db8:1::/64
//	 |      |      |
//	------ switch ------ router .254, ::fe
//	                       |    198.51.100.0/24, 2001:db8:2::/64
//	                     h4 .4
//
// Each has a bridge with a block 10.40.N.0/24, fd40:N::/64 and a container .5.
type lab struct {
	t      testing.TB
	router *space
	hosts  []*host
}

// space is a namespace.
type space struct {
	t    testing.TB
	path string
	conn *nl.Conn
}

type host struct {
	*space
	lab       *lab
	number    int
	container *space
	paths     paths.Paths
	mesh      *Mesh
	warned    []string
	keys      *Keys

	moved4, moved6 string // other underlay addresses
}

func newSpace(t testing.TB, name string) *space {
	t.Helper()
	path := nettest.NewNS(t, name)
	ns, err := netns.Open(path)
	must(t, err)
	conn, err := nl.In(ns, "/proc")
	must(t, err)
	t.Cleanup(conn.Close)
	s := &space{t: t, path: path, conn: conn}
	s.up("lo")
	for _, key := range []string{"net/ipv6/conf/all/accept_dad", "net/ipv6/conf/default/accept_dad"} {
		s.sysctl(key, "0")
	}
	return s
}

func (s *space) sysctl(key, value string) { s.t.Helper(); must(s.t, s.conn.SetSysctl(key, value)) }

func (s *space) up(name string) {
	s.t.Helper()
	must(s.t, s.conn.LinkSetUp(s.link(name)))
}

func (s *space) link(name string) netlink.Link {
	s.t.Helper()
	l, err := s.conn.Link(name)
	must(s.t, err)
	return l
}

func (s *space) addr(link string, addrs ...string) {
	s.t.Helper()
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		must(s.t, err)
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		must(s.t, s.conn.AddrAdd(s.link(link), addr))
	}
}

func (s *space) route(dst, via string) {
	s.t.Helper()
	p := netip.MustParsePrefix(dst)
	must(s.t, s.conn.RouteAdd(&netlink.Route{Dst: nl.IPNet(p), Gw: netip.MustParseAddr(via).AsSlice()}))
}

func (s *space) bridge(name string) {
	s.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(s.t, s.conn.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	s.up(name)
}

// join connects two namespaces. The end in a may become a port of a bridge.
func join(a *space, aName, master string, b *space, bName string) {
	a.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	must(a.t, a.conn.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(b.conn.NS.Fd())}))
	if master != "" {
		must(a.t, a.conn.LinkSetMaster(a.link(aName), a.link(master)))
	}
	a.up(aName)
	b.up(bName)
}

func newLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{t: t, router: newSpace(t, "router")}
	l.router.bridge("switch")
	l.router.addr("switch", "192.0.2.254/24", "2001:db8:1::fe/64")
	l.router.sysctl("net/ipv4/ip_forward", "1")
	l.router.sysctl("net/ipv6/conf/all/forwarding", "1")
	for n := 1; n <= 4; n++ {
		l.hosts = append(l.hosts, l.host(n))
	}
	return l
}

func (l *lab) host(n int) *host {
	t := l.t
	h := &host{space: newSpace(t, fmt.Sprintf("h%d", n)), lab: l, number: n}
	link, net4, net6, gw4, gw6 := fmt.Sprintf("to%d", n), "192.0.2.%d/24", "2001:db8:1::%d/64", "192.0.2.254", "2001:db8:1::fe"
	master := "switch"
	if n == 4 {
		master, net4, net6, gw4, gw6 = "", "198.51.100.%d/24", "2001:db8:2::%d/64", "198.51.100.254", "2001:db8:2::fe"
	}
	join(l.router, link, master, h.space, "eth0")
	if n == 4 {
		l.router.addr(link, "198.51.100.254/24", "2001:db8:2::fe/64")
	}
	h.addr("eth0", fmt.Sprintf(net4, n), fmt.Sprintf(net6, n))
	h.route("0.0.0.0/0", gw4)
	h.route("::/0", gw6)
	h.bridge("cni0")
	h.addr("cni0", fmt.Sprintf("10.40.%d.1/24", n), fmt.Sprintf("fd40:%d::1/64", n))
	h.container = newSpace(t, fmt.Sprintf("c%d", n))
	join(h.space, "vc", "cni0", h.container, "eth0")
	h.container.addr("eth0", fmt.Sprintf("10.40.%d.5/24", n), fmt.Sprintf("fd40:%d::5/64", n))
	h.container.route("0.0.0.0/0", fmt.Sprintf("10.40.%d.1", n))
	h.container.route("::/0", fmt.Sprintf("fd40:%d::1", n))
	h.keys = newKeys(t)
	h.paths = paths.Default()
	h.paths.Run = t.TempDir() + "/run"
	h.open()
	return h
}

// open starts the agent.
func (h *host) open() {
	h.t.Helper()
	h.do(func() (err error) {
		h.mesh, err = Open(Options{Paths: h.paths, Keys: h.keys, Warn: func(err error) { h.warned = append(h.warned, err.Error()) }})
		return err
	})
	if !testing.Short() { // an emulated machine may be slow
		h.mesh.waits = waits{usual.round / 3, usual.grace / 3} // the hosts are near
	}
	h.t.Cleanup(h.mesh.Close)
}

func (h *host) do(fn func() error) {
	h.t.Helper()
	must(h.t, h.conn.Do(fn))
}

// underlay4 and underlay6 return a host's addresses.
func (h *host) underlay4() netip.Addr {
	if h.moved4 != "" {
		return netip.MustParseAddr(h.moved4)
	}
	if h.number == 4 {
		return netip.MustParseAddr("198.51.100.4")
	}
	return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", h.number))
}

func (h *host) underlay6() netip.Addr {
	if h.moved6 != "" {
		return netip.MustParseAddr(h.moved6)
	}
	if h.number == 4 {
		return netip.MustParseAddr("2001:db8:2::4")
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", h.number))
}

func (h *host) blocks() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.40.%d.0/24", h.number)),
		netip.MustParsePrefix(fmt.Sprintf("fd40:%d::/64", h.number)),
	}
}

func (h *host) id() string { return fmt.Sprintf("node-%d", h.number) }

// setup is the mesh of a test.
type setup struct {
	transport Transport
	underlay  string // "4", "6", "46"
}

func (u setup) addrs(h *host) (list []netip.Addr) {
	if strings.Contains(u.underlay, "4") {
		list = append(list, h.underlay4())
	}
	if strings.Contains(u.underlay, "6") {
		list = append(list, h.underlay6())
	}
	return list
}

func (u setup) self(h *host) Self {
	return Self{
		ID: h.id(), Underlay: u.addrs(h), Blocks: h.blocks(),
		Subnets: []Subnet{
			{Network: "net", Prefix: netip.MustParsePrefix("10.40.0.0/16")},
			{Network: "net", Prefix: netip.MustParsePrefix("fd40::/16")},
		},
	}
}

func (u setup) peers(h *host, hosts ...*host) (list []Peer) {
	for _, p := range hosts {
		if p != h {
			list = append(list, Peer{ID: p.id(), Underlay: u.addrs(p), Blocks: p.blocks(), Transport: u.transport, Key: p.keys.Public})
		}
	}
	return list
}

// sync runs the agent on h once, with these hosts in its list.
func (u setup) sync(h *host, hosts ...*host) {
	h.t.Helper()
	h.do(func() error { return h.mesh.Apply(ctx, u.self(h), u.peers(h, hosts...)) })
}

func (u setup) all(hosts ...*host) {
	for _, h := range hosts {
		h.t.Helper()
		u.sync(h, hosts...)
	}
}

// talk checks that the containers of all pairs exchange a message over TCP, with both
// families, and see each other's own addresses.
func talk(t *testing.T, hosts ...*host) {
	t.Helper()
	for _, to := range hosts {
		for _, from := range hosts {
			if from == to {
				continue
			}
			for _, host := range []string{"10.40.%d.5", "fd40:%d::5"} {
				want := fmt.Sprintf(host, from.number)
				if got := ask(t, from.container, to.container, fmt.Sprintf(host, to.number)); got != want {
					t.Errorf("host %d to %s: seen as %q, want %q", from.number, fmt.Sprintf(host, to.number), got, want)
				}
			}
		}
	}
}

const patience = 15 * time.Second
