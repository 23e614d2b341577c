// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/prefix"
)

// sender notes that a peer may send from a block into the tunnel. A peer with a direct route may, too:
// it chooses the way of its packets itself. A host that uses no tunnels does not stop its containers from
// sending tunnel packets in its name, so it is no sender.
func (c *compiler) sender(p Peer, block netip.Prefix) {
	if p.Transport == WireGuard {
		return
	}
	same := func(x Sender) bool { return x.Peer == p.label() && slices.Equal(x.Underlay, p.Underlay) }
	i := slices.IndexFunc(c.state.Senders, same)
	if i < 0 {
		i = len(c.state.Senders)
		local := NextHop(p.vtep()) // for the tests of the tunnel
		c.state.Senders = append(c.state.Senders, Sender{Peer: p.label(), Underlay: p.Underlay, Inside: []netip.Prefix{netip.PrefixFrom(local, local.BitLen())}, Port: cmp.Or(p.Port, c.self.Port)})
	}
	x := &c.state.Senders[i]
	x.Inside, x.Tunnels = append(x.Inside, block), x.Tunnels || p.Transport != Routes
}

// guard lets only peers send into the tunnel, drops unencrypted packets of an encrypted network, and checks
// the sources of this host's containers. Without the guard, a device accepts packets from anybody, and a
// host accepts packets with any source.
func (s State) guard(ctx context.Context, fw *nft.Conn) error {
	if s.tunnels() {
		fw.Queue(nft.GuardTunnel(s.tunnel()))
	}
	fw.Queue(nft.GuardPlain(s.plain()))
	fw.Queue(nft.GuardLinks(s.links()))
	return fw.Commit(ctx)
}

// tunnels reports whether this host or its peers have tunnels. If this host reaches all its peers directly,
// they still accept packets from it through their tunnels.
func (s State) tunnels() bool { return len(s.Devices)+len(s.Senders) > 0 }

// links returns the bridges of the networks, each once, and the networks' ranges.
func (s State) links() nft.Links {
	l := nft.Links{Mesh: s.Name, Uplinks: s.Uplinks}
	for _, x := range s.Subnets {
		l.Networks = append(l.Networks, x.Prefix)
		if x.Bridge != "" && !slices.Contains(l.Bridges, x.Bridge) {
			l.Bridges = append(l.Bridges, x.Bridge)
		}
	}
	return l
}

// plain returns what must not come unencrypted.
func (s State) plain() nft.Plain {
	p := nft.Plain{Mesh: s.Name, From: s.encrypted(), Links: slices.Clone(s.Uplinks)}
	for _, n := range s.Subnets {
		if n.Encrypted && n.Closed {
			p.To = append(p.To, n.Prefix)
		}
	}
	for _, d := range s.Devices {
		p.Links = append(p.Links, d.Name)
	}
	return p
}

// encrypted returns the networks whose packets are encrypted.
func (s State) encrypted() (list []netip.Prefix) {
	for _, n := range s.Subnets {
		if n.Encrypted {
			list = append(list, n.Prefix)
		}
	}
	return list
}

// withoutDevices removes the devices that the state does not want, and the guard of a tunnel that has no
// device any more.
func (m *Mesh) withoutDevices(ctx context.Context, s State, fw *nft.Conn) error {
	if err := m.dropDevices(s.mark(), s.devices()); err != nil || len(s.Devices) > 0 {
		return err
	}
	fw.Queue(nft.UnguardTunnel(s.Name, s.tunnels()))
	return fw.Commit(ctx)
}

// tunnel returns what may come out of the tunnel. A source in a network of the mesh must be an address of
// the sending peer. A peer may send from other addresses, too: a host answers from the address that a
// container called, and may forward packets of other networks.
func (s State) tunnel() nft.Tunnel {
	t := nft.Tunnel{Name: s.Name, Port: s.Port, VNI: s.VNI, Ends: s.Underlay, NoEnd: len(s.Devices) == 0, Others: s.otherPorts()}
	if t.NoEnd {
		return t
	}
	others := append(s.outside(true), s.outside(false)...)
	for _, x := range s.Senders {
		for _, end := range x.Underlay {
			for _, p := range x.Inside {
				t.From = append(t.From, nft.TunnelSource{End: end, First: p.Addr(), Last: prefix.Last(p), Bits: p.Bits(), Comment: fmt.Sprintf("%s %s", x.Peer, p)})
			}
			for _, r := range others {
				t.From = append(t.From, nft.TunnelSource{End: end, First: r[0], Last: r[1], Comment: x.Peer + " other networks"})
			}
		}
	}
	return t
}

// otherPorts returns the ports of the peers' ends that differ from this host's, each once.
func (s State) otherPorts() (list []uint16) {
	for _, x := range s.Senders {
		if x.Port != s.Port && !slices.Contains(list, x.Port) {
			list = append(list, x.Port)
		}
	}
	order.By(list, cmp.Compare)
	return list
}

// outside returns the ranges of one family outside of the mesh's networks, each as its first and last
// address. It leaves out this host's underlay addresses and, for IPv6, link-local addresses.
func (s State) outside(v4 bool) (ranges [][2]netip.Addr) {
	next, end := netip.IPv6Unspecified(), prefix.Last(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	mine := []netip.Prefix{prefix.LinkLocal()}
	if v4 {
		next, end = netip.IPv4Unspecified(), prefix.Last(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
		mine = nil
	}
	for _, x := range s.Subnets {
		if x.Prefix.Addr().Is4() == v4 {
			mine = append(mine, x.Prefix)
		}
	}
	for _, a := range s.Underlay {
		if a.Is4() == v4 {
			mine = append(mine, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	order.By(mine, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	for _, p := range mine {
		if next.Less(p.Addr()) {
			ranges = append(ranges, [2]netip.Addr{next, p.Addr().Prev()})
		}
		if next = prefix.Last(p).Next(); !next.IsValid() {
			return ranges
		}
	}
	return append(ranges, [2]netip.Addr{next, end})
}
