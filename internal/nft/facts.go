// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net"
	"net/netip"
	"strings"
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

// Port publishes a port in the maps of conditions c, or in the common maps when c is nil.
// The family is that of p.To.
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

// MasqAll masquerades everything that reaches addr through a published port, so that the
// container sees the host as the client.
func MasqAll(addr netip.Addr, comment string) Element {
	return Element{Set: of(addr, SetMasqAll4, SetMasqAll6), Key: Addr(addr), Comment: cleanComment(comment)}
}

// SNAT lets Neighbours and MasqAll apply to one published port, and masquerades traffic to
// it from 127.0.0.0/8. Without SNAT they would apply to every program's destination NAT,
// such as the traffic of a Kubernetes Service between two pods of a subnet, and hide the
// client.
func SNAT(p Published, comment string) Element {
	to := p.To.Addr()
	return Element{
		Set:     of(to, SetSNAT4, SetSNAT6),
		Key:     AddrProtoPort(to, p.Protocol, p.Port),
		Comment: cleanComment(comment),
	}
}

// GuardLoopback keeps packets that enter through an interface from 127.0.0.0/8. The kernel
// drops them itself until route_localnet is set, which published ports need to be reached
// from 127.0.0.1 (CVE-2020-8558).
func GuardLoopback(ifName, network string) Element {
	return Element{Set: SetLocalNet, Key: IfName(ifName), Comment: cleanComment(network)}
}

// Masqueraded gives a container's packets the host's address on their way out, except to
// the network of its address and to the given others. Multicast is never masqueraded.
func Masqueraded(address netip.Prefix, comment string, others ...netip.Prefix) []Element {
	a := address.Addr().Unmap()
	elems := []Element{{Set: of(a, SetMasqueraded4, SetMasqueraded6), Key: Addr(a), Comment: cleanComment(comment)}}
	for _, n := range append([]netip.Prefix{address}, others...) {
		if n.Addr().Is4() == a.Is4() && !n.IsSingleIP() {
			elems = append(elems, within(SetSameNet4, SetSameNet6, a, n, comment))
		}
	}
	return elems
}

// Masquerades reports whether an element is one that Masqueraded returns.
func (e Element) Masquerades() bool {
	kind, _, _ := strings.Cut(e.Set, "_")
	switch kind {
	case SetMasqueraded4, SetMasqueraded6, SetSameNet4, SetSameNet6:
		return true
	}
	return false
}

// Neighbours masquerades published traffic to a container from its own network, the
// container itself included. Without it the answer would not pass through the host.
func Neighbours(address netip.Prefix, comment string) Element {
	return within(SetNeighbours4, SetNeighbours6, address.Addr().Unmap(), address, comment)
}

// Masquerade gives packets of a subnet the host's address on their way out, except within
// the subnet. It does not regard which network an address belongs to: releases before
// Masqueraded worked like this. Multicast is never masqueraded.
func Masquerade(subnet netip.Prefix, network string) []Element {
	a := subnet.Addr()
	return []Element{
		pair(of(a, SetNoMasq4, SetNoMasq6), subnet, subnet, network),
		pair(of(a, SetMasq4, SetMasq6), subnet, everything(a), network),
	}
}

// Neighbours reports whether an element is one that the function Neighbours returns.
func (e Element) Neighbours() bool {
	kind, _, _ := strings.Cut(e.Set, "_")
	return kind == SetNeighbours4 || kind == SetNeighbours6
}

// Isolate keeps a bridge from forwarding to any isolated bridge, itself included.
func Isolate(bridge, network string) Element {
	return Element{Set: SetIsolation, Key: IfName(bridge), Comment: cleanComment(network)}
}

// SameBridge lets an isolated bridge forward to itself.
func SameBridge(bridge, network string) Element {
	return Element{Set: SetBridgeOK, Key: IfNamePair(bridge, bridge), Comment: cleanComment(network)}
}

// Apart keeps a bridge from forwarding to itself, even when another network of the bridge
// has SameBridge.
func Apart(bridge, network string) Element {
	return Element{Set: SetApart, Key: IfNamePair(bridge, bridge), Comment: cleanComment(network)}
}

// Internal keeps a bridge from forwarding at all, except for frames between its own ports,
// which pass the firewall with br_netfilter.
func Internal(bridge, network string) []Element {
	comment := cleanComment(network)
	return []Element{
		{Set: SetInside, Key: IfNamePair(bridge, bridge), Comment: comment},
		{Set: SetInternal, Key: IfName(bridge), Comment: comment},
	}
}

// CheckMAC drops frames that enter through a host interface with another source address
// than mac.
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

// of chooses the set of an address's family.
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
