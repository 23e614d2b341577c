// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"net"
	"net/netip"
)

// IPNet is a prefix as the netlink library takes it, its host bits kept. It is
// never nil, which would be a default route's: of the invalid prefix both fields
// are.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// PrefixOf is IPNet's reverse, the address as AddrOf gives it. nil, as the library
// has it for no peer and for some default routes, is the invalid prefix.
func PrefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(AddrOf(n.IP), bits)
}

// AddrOf is the address of the library's 4 or 16 bytes, an IPv4 address in IPv6
// form as one of IPv4, and the invalid address for what is none.
func AddrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
