// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"net"
	"net/netip"
)

// IPNet is a prefix in the netlink library's form, with its host bits. It is never nil,
// which would stand for a default route: for the invalid prefix both fields are nil.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// PrefixOf is the reverse of IPNet, with the address as AddrOf returns it. nil, which the
// library uses for no peer and for some default routes, gives the invalid prefix.
func PrefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(AddrOf(n.IP), bits)
}

// AddrOf is the address of the library's 4 or 16 bytes, an IPv4 address in IPv6 form as an
// IPv4 address. Any other length gives the invalid address.
func AddrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
