// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Addr is an address of a link. Flags are IFA_F_*.
type Addr struct {
	Prefix netip.Prefix
	Flags  uint32
}

// Addrs returns the addresses of one link. The request has the link's index. So the kernel does
// not walk through all links, as it does for Handle.AddrList.
func (c *Conn) Addrs(index int) ([]Addr, error) {
	addrs, err := Retry(func() ([]Addr, error) { return c.dumpAddrs(index) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of link %d: %w", index, err)
	}
	return addrs, nil
}

func (c *Conn) dumpAddrs(index int) ([]Addr, error) {
	head := vnl.NewIfAddrmsg(unix.AF_UNSPEC)
	head.Index = uint32(index)
	msgs, err := c.request(unix.RTM_GETADDR, unix.NLM_F_DUMP, unix.RTM_NEWADDR, head)
	if err != nil {
		return nil, err
	}
	var addrs []Addr
	for _, m := range msgs {
		if int(vnl.DeserializeIfAddrmsg(m).Index) != index {
			continue
		}
		a, err := parseAddr(m)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// parseAddr reads an RTM_NEWADDR message. If the link has a peer, IFA_LOCAL is the link's own
// address and IFA_ADDRESS is the peer's.
func parseAddr(m []byte) (Addr, error) {
	head := vnl.DeserializeIfAddrmsg(m)
	out := Addr{Flags: uint32(head.Flags)}
	var ip []byte
	for kind, value := range attributes(m[head.Len():]) {
		switch {
		case kind == unix.IFA_LOCAL, kind == unix.IFA_ADDRESS && ip == nil:
			ip = value
		case kind == unix.IFA_FLAGS && len(value) == 4:
			out.Flags = vnl.NativeEndian().Uint32(value)
		}
	}
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return Addr{}, fmt.Errorf("decode address: %d bytes", len(ip))
	}
	out.Prefix = netip.PrefixFrom(addr, int(head.Prefixlen))
	return out, nil
}

// HasNeighbour reports whether a link's neighbour table has an entry for an address, in any
// state.
func (c *Conn) HasNeighbour(index int, addr netip.Addr) (bool, error) {
	head := &netlink.Ndmsg{Family: uint8(familyOf(addr)), Index: uint32(index)}
	_, err := c.request(unix.RTM_GETNEIGH, 0, 0, head, attr(unix.NDA_DST, addr.AsSlice()))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up neighbour %s: %w", addr, err)
	}
	return true, nil
}

const ifaMulticast = 7 // IFA_MULTICAST, include/uapi/linux/if_addr.h

// Joined returns the IPv6 multicast groups that a link has joined.
func (c *Conn) Joined(index int) ([]netip.Addr, error) {
	groups, err := Retry(func() (groups []netip.Addr, err error) {
		head := vnl.NewIfAddrmsg(unix.AF_INET6)
		head.Index = uint32(index)
		msgs, err := c.request(unix.RTM_GETMULTICAST, unix.NLM_F_DUMP, 0, head)
		for _, m := range msgs {
			head := vnl.DeserializeIfAddrmsg(m)
			if int(head.Index) != index {
				continue
			}
			for kind, value := range attributes(m[head.Len():]) {
				if addr, ok := netip.AddrFromSlice(value); ok && kind == ifaMulticast {
					groups = append(groups, addr)
				}
			}
		}
		return groups, err
	})
	if err != nil {
		return nil, fmt.Errorf("list multicast groups of link %d: %w", index, err)
	}
	return groups, nil
}

// IPNet returns a prefix in the netlink library's type, with its host bits. IPNet never
// returns nil, because nil would mean a default route. For an invalid prefix, both fields are
// nil.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// PrefixOf is the reverse of IPNet. The library uses nil for a missing peer, and for some default
// routes. For nil, PrefixOf returns the invalid prefix.
func PrefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(AddrOf(n.IP), bits)
}

// AddrOf converts 4 or 16 bytes of the library to an address. An IPv4-mapped IPv6 address
// becomes an IPv4 address. For any other length it returns the invalid address.
func AddrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
