// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// town is two nodes, joined by a link. Each address that is not a node's has a namespace of its own,
// which is attached to one of the nodes. Links resolve no addresses: both ends have one MAC.
//
//	10.0.0.1 -- node0 ==== node1 -- 10.0.0.2
type town struct {
	t     testing.TB
	nodes [2]*house
	homes map[netip.Addr]*house
}

// house is a namespace, and the sockets of its addresses.
type house struct {
	*nl.Conn
	fd      int
	node    int // to which node it is attached
	serial  int
	sockets map[netip.Addr]map[uint8]net.PacketConn // by protocol
}

// ours is the mark of packets of probes. Answers have no mark, and do not leave a home.
const ours = 1

func newTown(t testing.TB) *town {
	w := &town{t: t, homes: make(map[netip.Addr]*house)}
	for i := range w.nodes {
		w.nodes[i] = w.house(fmt.Sprint("node", i))
		must(t, w.nodes[i].SetSysctl("net/ipv4/ip_forward", "1"))
		must(t, w.nodes[i].SetSysctl("net/ipv6/conf/all/forwarding", "1"))
	}
	w.join(w.nodes[0], "link", w.nodes[1], "link")
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *town) house(name string) *house {
	path := nettest.NewNS(w.t, name)
	ns, err := netns.Open(path)
	must(w.t, err)
	conn, err := nl.In(ns, "/proc")
	must(w.t, err)
	h := &house{Conn: conn, fd: ns.Fd(), sockets: make(map[netip.Addr]map[uint8]net.PacketConn)}
	w.t.Cleanup(func() { h.hush(); conn.Close() })
	must(w.t, conn.SetSysctl("net/ipv6/conf/default/accept_dad", "0"))
	must(w.t, conn.SetSysctl("net/ipv6/conf/all/accept_dad", "0"))
	must(w.t, h.up("lo"))
	return h
}

func (h *house) up(name string) error {
	l, err := h.Link(name)
	if err != nil {
		return err
	}
	return h.LinkSetUp(l)
}

// join connects two houses by a link that resolves no addresses.
func (w *town) join(a *house, aName string, b *house, bName string) {
	w.t.Helper()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	w.connect(a, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: aName, HardwareAddr: mac}, PeerName: bName, PeerHardwareAddr: mac}, b)
	for h, name := range map[*house]string{a: aName, b: bName} {
		l, err := h.Link(name)
		must(w.t, err)
		must(w.t, h.LinkSetARPOff(l))
	}
}

// resolving connects two houses by a link that resolves addresses, as those of real pods.
func (w *town) resolving(a *house, aName string, b *house, bName string) {
	w.t.Helper()
	w.connect(a, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: aName}, PeerName: bName}, b)
}

// connect makes a link, and waits until the kernel has seen that both ends are up. Until then it drops
// packets and holds back IPv6 addresses.
func (w *town) connect(a *house, veth *netlink.Veth, b *house) {
	w.t.Helper()
	veth.PeerNamespace = netlink.NsFd(b.fd)
	must(w.t, a.LinkAdd(veth))
	must(w.t, a.up(veth.Name))
	must(w.t, b.up(veth.PeerName))
	until(func() bool { return a.isUp(veth.Name) && b.isUp(veth.PeerName) })
}

func (h *house) isUp(name string) bool {
	l, err := h.Link(name)
	return err == nil && l.Attrs().OperState == netlink.OperUp
}

// place gives the nodes their addresses, and attaches each other address to a node.
func (w *town) place(nodes [2][]netip.Addr, others map[netip.Addr]int) {
	for i, addrs := range nodes {
		for _, a := range addrs {
			w.nodes[i].speak(w.t, a, "lo")
		}
	}
	for a, node := range others {
		w.home(a, node)
	}
	for i := range nodes {
		for a := range w.nodes[i].sockets {
			if !slices.Contains(nodes[i], a) {
				w.nodes[i].forget(w.t, a, "lo")
			}
		}
		for _, a := range nodes[1-i] {
			w.nodes[i].route(w.t, a, "link")
		}
		for a, node := range others {
			if node == i {
				w.nodes[i].route(w.t, a, fmt.Sprint("v", w.homes[a].serial))
			} else {
				w.nodes[i].route(w.t, a, "link")
			}
		}
	}
}

// home makes the namespace of an address, or attaches it to another node.
func (w *town) home(a netip.Addr, node int) {
	h := w.homes[a]
	switch {
	case h == nil:
		h = w.house(fmt.Sprint("h", len(w.homes)))
		h.serial, h.node = len(w.homes), -1
		w.homes[a] = h
		must(w.t, h.keepQuiet())
	case h.node == node:
		return
	default:
		l, err := h.Link("eth0")
		must(w.t, err)
		h.hush()
		must(w.t, h.LinkDel(l))
	}
	h.node = node
	w.join(h, "eth0", w.nodes[node], fmt.Sprint("v", h.serial))
	h.speak(w.t, a, "eth0")
	l, err := h.Link("eth0")
	must(w.t, err)
	must(w.t, h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: prefix(netip.PrefixFrom(unspecified(a), 0))}))
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func prefix(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func single(a netip.Addr) *net.IPNet { return prefix(netip.PrefixFrom(a, a.BitLen())) }

// route sends packets to an address through a link.
func (h *house) route(t testing.TB, a netip.Addr, link string) {
	l, err := h.Link(link)
	must(t, err)
	must(t, h.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: single(a)}))
}

// keepQuiet lets only packets of probes leave a home: no answers to them.
func (h *house) keepQuiet() error {
	c, err := nftables.New(nftables.WithNetNSFd(h.fd))
	if err != nil {
		return err
	}
	drop := nftables.ChainPolicyDrop
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "quiet"})
	chain := c.AddChain(&nftables.Chain{Table: table, Name: "output", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{ours, 0, 0, 0}},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}})
	return c.Flush()
}

// speak gives a house an address, and opens its sockets.
func (h *house) speak(t testing.TB, a netip.Addr, link string) {
	if h.sockets[a] != nil {
		return
	}
	l, err := h.Link(link)
	must(t, err)
	must(t, h.AddrReplace(l, &netlink.Addr{IPNet: single(a), Flags: unix.IFA_F_NODAD}))
	h.sockets[a] = make(map[uint8]net.PacketConn)
	for _, proto := range protocolsOf(a) {
		must(t, h.Do(func() error { return h.listen(a, proto) }))
	}
}

func (h *house) listen(a netip.Addr, proto uint8) error {
	network := fmt.Sprintf("ip4:%d", proto)
	if a.Is6() {
		network = fmt.Sprintf("ip6:%d", proto)
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, ours) }), err)
	}}
	conn, err := config.ListenPacket(nil, network, a.String()) //nolint:staticcheck // a local socket
	if err != nil {
		return err
	}
	h.sockets[a][proto] = conn
	go receive(conn, a, proto)
	return nil
}

// forget takes an address from a house.
func (h *house) forget(t testing.TB, a netip.Addr, link string) {
	h.mute(a)
	l, err := h.Link(link)
	must(t, err)
	must(t, h.AddrDel(l, &netlink.Addr{IPNet: single(a)}))
}

// hush closes the sockets of a house.
func (h *house) hush() {
	for a := range h.sockets {
		h.mute(a)
	}
}

func (h *house) mute(a netip.Addr) {
	for _, conn := range h.sockets[a] {
		conn.Close() //nolint:errcheck // its reader ends
	}
	delete(h.sockets, a)
}
