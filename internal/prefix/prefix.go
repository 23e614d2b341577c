// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package prefix has what net/netip does not say of addresses: the last one of a prefix, which ones are
// link-local in IPv6, and which ones a host has for others.
package prefix

import "net/netip"

// Last returns the last address of a prefix. For IPv4 it is the broadcast address, if the prefix has one.
func Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := max(p.Bits(), 0); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b) // 4 or 16 bytes
	return a
}

// LinkLocal returns fe80::/10, the addresses that the kernel gives to each link with IPv6.
func LinkLocal() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfe, 0x80}), 10)
}

// IsLinkLocal reports whether an address, with or without a zone, is one of LinkLocal. An address of
// 169.254.0.0/16 is not: IPv4 uses such an address as any other.
func IsLinkLocal(a netip.Addr) bool { return LinkLocal().Contains(a.WithZone("")) }

// IsHost reports whether an address can be that by which other hosts reach one: a unicast address that holds for
// more than one link, and is not written in the form of IPv6 if it is one of IPv4.
func IsHost(a netip.Addr) bool { return a.IsGlobalUnicast() && !a.Is4In6() && a.Zone() == "" }
