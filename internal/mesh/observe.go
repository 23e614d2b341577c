// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// Observe reads the kernel's routes to every peer, and what Compile needs to know about this
// host. Observe fails if this host does not have one of its own underlay addresses. Observe also
// fails if a peer needs WireGuard and the kernel does not have it.
func (m *Mesh) Observe(self Self, peers []Peer) (Observed, error) {
	f := Observed{Reach: make(map[netip.Addr]Reach)}
	_, err := m.conn.Sysctl("net/ipv6/conf/all/forwarding")
	f.NoIPv6 = errors.Is(err, fs.ErrNotExist)
	addrs, err := m.addrs()
	if err != nil {
		return Observed{}, err
	}
	if f.MTU, err = m.uplinkMTU(self.Underlay, addrs); err != nil {
		return Observed{}, fmt.Errorf("%w: %w", ErrSelf, err)
	}
	if f.Uplinks, err = m.uplinksOf(self.Underlay, addrs); err != nil {
		return Observed{}, fmt.Errorf("%w: %w", ErrSelf, err)
	}
	if f.Key, err = m.wireKey(peers); err != nil {
		return Observed{}, fmt.Errorf("%w: %w", ErrSelf, err)
	}
	f.Own = m.own(self.borrowed(), addrs)
	f.Paths = m.paths.pathMTUs(f.MTU)
	if f.Detours, err = m.detours(self.withDefaults().Protocol); err != nil {
		return Observed{}, err
	}
	for _, p := range peers {
		for _, a := range p.Underlay {
			if _, done := f.Reach[a]; done || !a.IsValid() {
				continue
			}
			if f.Reach[a], err = m.reach(a); err != nil {
				return Observed{}, err
			}
		}
	}
	return f, nil
}

// reach reads the route to one address. A link that is not Ethernet (WireGuard, GRE) does not
// count as a direct link. Its peers have no gateway, but the link does not forward packets for
// other destinations through them.
func (m *Mesh) reach(a netip.Addr) (Reach, error) {
	routes, err := m.conn.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return Reach{}, noRoute(a, err)
	}
	r := routes[0]
	link, err := m.conn.LinkAt(r.LinkIndex)
	if err != nil {
		return Reach{}, noRoute(a, err)
	}
	return Reach{
		Link:   link.Attrs().Name,
		OnLink: len(r.Gw) == 0 && r.Via == nil && link.Attrs().EncapType == "ether",
	}, nil
}

// noRoute drops errors that only mean that there is no route now. A kernel without IPv6 answers
// EOPNOTSUPP.
func noRoute(a netip.Addr, err error) error {
	for _, none := range [...]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES, unix.EAGAIN, unix.EOPNOTSUPP} {
		if errors.Is(err, none) {
			return nil
		}
	}
	if err == nil || nl.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("ask for the route to %s: %w", a, err)
}

// addrs returns the host's usable addresses.
func (m *Mesh) addrs() ([]netlink.Addr, error) {
	list, err := m.conn.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return slices.DeleteFunc(list, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 }), nil
}

// own returns the host's addresses in its blocks. own stores the blocks and the addresses for
// Watch.
func (m *Mesh) own(blocks []netip.Prefix, addrs []netlink.Addr) map[netip.Prefix]netip.Addr {
	out := make(map[netip.Prefix]netip.Addr)
	for _, b := range blocks {
		for _, a := range addrs {
			if ip := nl.AddrOf(a.IP); b.Contains(ip) && ip != wireAddr(b) {
				out[b] = ip
				break
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocks, m.hostAddrs = blocks, make(map[netip.Addr]bool)
	for _, a := range addrs {
		m.hostAddrs[nl.AddrOf(a.IP)] = true
	}
	return out
}

// UplinkMTU returns the lowest MTU of the links that have these addresses, in bytes.
func (m *Mesh) UplinkMTU(underlay []netip.Addr) (int, error) {
	addrs, err := m.addrs()
	if err != nil {
		return 0, err
	}
	return m.uplinkMTU(underlay, addrs)
}

func (m *Mesh) uplinkMTU(underlay []netip.Addr, addrs []netlink.Addr) (int, error) {
	least := 0
	var uplinks []int
	for _, a := range underlay {
		link, err := m.linkOf(a, addrs)
		if err != nil {
			return 0, err
		}
		uplinks = append(uplinks, link.Attrs().Index)
		if mtu := link.Attrs().MTU; least == 0 || mtu < least {
			least = mtu
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uplinks = uplinks
	return least, nil
}

// uplinksOf returns the names of the links that have these addresses.
func (m *Mesh) uplinksOf(underlay []netip.Addr, addrs []netlink.Addr) (names []string, err error) {
	for _, a := range underlay {
		link, err := m.linkOf(a, addrs)
		if err != nil {
			return nil, err
		}
		if name := link.Attrs().Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func (m *Mesh) linkOf(a netip.Addr, addrs []netlink.Addr) (netlink.Link, error) {
	for _, have := range addrs {
		if have.IP.Equal(net.IP(a.AsSlice())) {
			return m.conn.LinkAt(have.LinkIndex)
		}
	}
	return nil, fmt.Errorf("underlay address %s is on no link of this host", a)
}
