// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net"
	"net/netip"
)

// Owner marks an attachment as having elements; owner is its owner key.
func Owner(owner, comment string) Element {
	return Element{Set: SetOwners, Key: IfName(owner), Comment: cleanComment(comment)}
}

// Published is one published port.
type Published struct {
	Host     netip.Addr // the zero Addr, 0.0.0.0 or ::, is every local address
	Protocol uint8      // IP protocol number: 6, 17, 132
	Port     uint16
	To       netip.AddrPort
}

// Port publishes a port in the maps of conditions c, or in the common ones
// where c is nil. The family is that of p.To.
func Port(p Published, c *Conditions, comment string) Element {
	wild := !p.Host.IsValid() || p.Host.IsUnspecified()
	set := SetHostPorts4
	switch v6 := p.To.Addr().Unmap().Is6(); {
	case wild && v6:
		set = SetPorts6
	case wild:
		set = SetPorts4
	case v6:
		set = SetHostPorts6
	}
	key := ProtoPort(p.Protocol, p.Port)
	if !wild {
		key = AddrProtoPort(p.Host, p.Protocol, p.Port)
	}
	return Element{Set: c.setName(set), Key: key, Data: AddrPort(p.To), Comment: cleanComment(comment)}
}

// MasqAll masquerades everything that reaches addr by a published port, so
// the container sees the host as the client.
func MasqAll(addr netip.Addr, comment string) Element {
	return Element{Set: of(addr, SetMasqAll4, SetMasqAll6), Key: Addr(addr), Comment: cleanComment(comment)}
}

// Masquerade gives a subnet the host's address on its way out, except within
// the subnet. Multicast is never masqueraded.
func Masquerade(subnet netip.Prefix, network string) []Element {
	a := subnet.Addr()
	return []Element{
		pair(of(a, SetNoMasq4, SetNoMasq6), subnet, subnet, network),
		pair(of(a, SetMasq4, SetMasq6), subnet, everything(a), network),
	}
}

// Hairpin masquerades published traffic from a subnet to itself, without which
// the answer would not pass the host.
func Hairpin(subnet netip.Prefix, network string) Element {
	return pair(of(subnet.Addr(), SetHairpin4, SetHairpin6), subnet, subnet, network)
}

// LocalSNAT masquerades published traffic from the loopback addresses to a
// subnet; IPv4 needs net.ipv4.conf.<if>.route_localnet as well.
func LocalSNAT(subnet netip.Prefix, network string) Element {
	lo := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	if subnet.Addr().Is6() {
		lo = netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return pair(of(subnet.Addr(), SetHairpin4, SetHairpin6), lo, subnet, network)
}

// Isolate keeps a bridge from forwarding to any isolated bridge, itself included.
func Isolate(bridge, network string) Element {
	return Element{Set: SetIsolation, Key: IfName(bridge), Comment: cleanComment(network)}
}

// SameBridge lets an isolated bridge forward to itself.
func SameBridge(bridge, network string) Element {
	return Element{Set: SetBridgeOK, Key: IfNamePair(bridge, bridge), Comment: cleanComment(network)}
}

// Apart keeps a bridge from forwarding to itself, also when another network of
// the bridge has SameBridge.
func Apart(bridge, network string) Element {
	return Element{Set: SetApart, Key: IfNamePair(bridge, bridge), Comment: cleanComment(network)}
}

// CheckMAC drops frames that come in by a host interface with another source
// address than mac.
func CheckMAC(hostIf string, mac net.HardwareAddr, comment string) []Element {
	comment = cleanComment(comment)
	return []Element{
		{Set: SetSpoofAllowed, Key: IfNameMAC(hostIf, mac), Comment: comment},
		{Set: SetSpoofChecked, Key: IfName(hostIf), Comment: comment},
	}
}

func pair(set string, from, to netip.Prefix, network string) Element {
	key, end := PrefixPair(from, to)
	return Element{Set: set, Key: key, KeyEnd: end, Comment: cleanComment(network)}
}

// of picks the set of an address's family.
func of(a netip.Addr, v4, v6 string) string {
	if a.Unmap().Is4() {
		return v4
	}
	return v6
}

// everything is the default route of an address's family.
func everything(a netip.Addr) netip.Prefix {
	if a.Unmap().Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
