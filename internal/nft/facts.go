// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net"
	"net/netip"
	"strings"
)

// Owner returns the element that marks an attachment as having elements. owner is the owner
// key.
func Owner(owner, comment string) Element {
	return Element{Set: SetOwners, Key: IfName(owner), Comment: CleanComment(comment)}
}

// Published describes a published port.
type Published struct {
	Host     netip.Addr // the zero Addr, 0.0.0.0 and :: mean every local address
	Protocol uint8      // IP protocol number: 6, 17, 132
	Port     uint16
	To       netip.AddrPort
}

// Port returns the element that publishes a port. The element goes into the maps of the conditions
// c, or into the common maps if c is nil. The element has the address family of p.To.
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
	return Element{Set: c.setName(set), Key: key, Data: AddrPort(p.To), Comment: CleanComment(comment)}
}

// MasqAll returns the element that masquerades all traffic to addr through published ports.
// The container then sees the host as the client.
func MasqAll(addr netip.Addr, comment string) Element {
	return Element{Set: of(addr, SetMasqAll4, SetMasqAll6), Key: Addr(addr), Comment: CleanComment(comment)}
}

// SNAT returns the element that lets Neighbours and MasqAll work for one published port. The
// element also masquerades traffic to this port from 127.0.0.0/8. Without this restriction to published ports,
// Neighbours and MasqAll would masquerade connections that any program translates, such as those of a Kubernetes
// Service between two pods of a subnet, and hide the client.
func SNAT(p Published, comment string) Element {
	to := p.To.Addr()
	return Element{
		Set:     of(to, SetSNAT4, SetSNAT6),
		Key:     AddrProtoPort(to, p.Protocol, p.Port),
		Comment: CleanComment(comment),
	}
}

// GuardLoopback returns the element that drops packets to 127.0.0.0/8 that enter through an
// interface. The kernel drops them by itself unless route_localnet is set. But published ports
// need route_localnet so that they work on 127.0.0.1 (CVE-2020-8558).
func GuardLoopback(ifName, network string) Element {
	return Element{Set: SetLocalNet, Key: IfName(ifName), Comment: CleanComment(network)}
}

// Masqueraded returns elements that give a container's packets the host's address when they
// leave the host. Masqueraded excludes packets to the container's own network, to the prefixes
// in others, and to multicast groups.
func Masqueraded(address netip.Prefix, comment string, others ...netip.Prefix) []Element {
	a := address.Addr().Unmap()
	comment = CleanComment(comment)
	elems := []Element{{Set: of(a, SetMasqueraded4, SetMasqueraded6), Key: Addr(a), Comment: comment}}
	for _, n := range append([]netip.Prefix{address}, others...) {
		if n.Addr().Is4() == a.Is4() && !n.IsSingleIP() {
			elems = append(elems, within(SetSameNet4, SetSameNet6, a, n, comment))
		}
	}
	return elems
}

// Egress returns the element that gives a masqueraded container's packets the source address source
// when they leave the host. Both addresses have the same family.
func Egress(container, source netip.Addr, comment string) Element {
	return Element{Set: of(container, SetEgress4, SetEgress6), Key: Addr(container), Data: Addr(source), Comment: CleanComment(comment)}
}

// Egress reports whether the function Egress returns such an element, and its source address.
func (e Element) Egress() (source netip.Addr, ok bool) {
	if e.Set != SetEgress4 && e.Set != SetEgress6 {
		return source, false
	}
	return netip.AddrFromSlice(e.Data)
}

// Leaving returns the egress element for the container that e masquerades. Its source address is
// the one in sources with the container's family; sources has at most one address of each family.
// If e masquerades no container, or sources has no such address, ok is false.
func (e Element) Leaving(sources []netip.Addr) (egress Element, ok bool) {
	a, ok := netip.AddrFromSlice(e.Key)
	if !ok || e.Set != SetMasqueraded4 && e.Set != SetMasqueraded6 {
		return egress, false
	}
	for _, s := range sources {
		if s.Is4() == a.Is4() {
			return Egress(a, s, e.Comment), true
		}
	}
	return egress, false
}

// Exempt returns the element that lets masqueraded packets from one prefix to another keep
// their source address. The prefixes have the same family.
func Exempt(from, to netip.Prefix, network string) Element {
	return pair(of(from.Addr(), SetExempt4, SetExempt6), from, to, network)
}

// AnyPort returns the element that gives masqueraded packets from a prefix a random source port, as egress
// addresses do. Without it a packet keeps its port unless another connection uses that port. The kernel looks for
// such a connection before it inserts the new one. So of two first packets from the same port to the same
// destination at the same moment, one is lost (insert_failed in /proc/net/stat/nf_conntrack; measured in ADR 81).
func AnyPort(from netip.Prefix, network string) Element {
	a := from.Addr()
	return pair(of(a, SetAnyPort4, SetAnyPort6), from, netip.PrefixFrom(a, 0).Masked(), network)
}

// Masquerades reports whether Masqueraded or Egress returns such an element.
func (e Element) Masquerades() bool {
	kind, _, _ := strings.Cut(e.Set, "_")
	switch kind {
	case SetEgress4, SetEgress6, SetMasqueraded4, SetMasqueraded6, SetSameNet4, SetSameNet6:
		return true
	}
	return false
}

// Neighbours returns the element that masquerades traffic from a container's own network to
// its published ports. This includes traffic from the container to itself. Without it, the
// answers would not pass through the host.
func Neighbours(address netip.Prefix, comment string) Element {
	return within(SetNeighbours4, SetNeighbours6, address.Addr().Unmap(), address, CleanComment(comment))
}

// Isolate returns the element that stops forwarding from a bridge to any isolated bridge,
// including to itself.
func Isolate(bridge, network string) Element {
	return Element{Set: SetIsolation, Key: IfName(bridge), Comment: CleanComment(network)}
}

// SameBridge returns the element that lets an isolated bridge forward to itself.
func SameBridge(bridge, network string) Element {
	return Element{Set: SetBridgeOK, Key: IfNamePair(bridge, bridge), Comment: CleanComment(network)}
}

// Apart returns the element that stops a bridge from forwarding to itself, even if another
// network of the bridge has SameBridge.
func Apart(bridge, network string) Element {
	return Element{Set: SetApart, Key: IfNamePair(bridge, bridge), Comment: CleanComment(network)}
}

// Internal returns elements that stop all forwarding to and from a bridge, except within a Span. Frames
// between the bridge's own ports, which pass the firewall with br_netfilter, are still allowed.
func Internal(bridge, network string) []Element {
	comment := CleanComment(network)
	return []Element{
		{Set: SetInside, Key: IfNamePair(bridge, bridge), Comment: comment},
		{Set: SetInternal, Key: IfName(bridge), Comment: comment},
	}
}

// CheckMAC returns elements that drop frames entering through a host interface if their source
// address is not mac.
func CheckMAC(hostIf string, mac net.HardwareAddr, comment string) []Element {
	comment = CleanComment(comment)
	return []Element{
		{Set: SetSpoofAllowed, Key: IfNameMAC(hostIf, mac), Comment: comment},
		{Set: SetSpoofChecked, Key: IfName(hostIf), Comment: comment},
	}
}

func pair(set string, from, to netip.Prefix, network string) Element {
	key, end := PrefixPair(from, to)
	return Element{Set: set, Key: key, KeyEnd: end, Comment: CleanComment(network)}
}

// of returns the name of the set for the family of a.
func of(a netip.Addr, v4, v6 string) string {
	if a.Unmap().Is4() {
		return v4
	}
	return v6
}
