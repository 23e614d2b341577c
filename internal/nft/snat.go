// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// These sets of published ports decide which traffic is masqueraded.
const (
	SetSNAT4 = "snat4" // container address . protocol . host port: neighbours and masqall apply
	SetSNAT6 = "snat6" //

	SetLocalNet = "localnet" // interfaces with route_localnet, from which 127.0.0.0/8 is not reached
)

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

// publishedRules match the published ports that snat is on for. Each protocol has a rule,
// because nft (1.0.6) reads `ct original proto-dst` only after a match of the protocol:
//
//	meta l4proto tcp ip daddr . meta l4proto . ct original proto-dst @snat4 jump hairpin
func publishedRules() (rules []staticRule) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
			rules = append(rules, staticRule{"", rule(publishedIn(v6, proto), jump(chainHairpin))})
		}
	}
	return rules
}

func publishedIn(v6 bool, proto byte) match {
	set, word := SetSNAT4, 1
	if v6 {
		set, word = SetSNAT6, 4
	}
	return rule(metaIs(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{proto}), family(v6), match{
		loadAddr(v6, false, reg1),
		loadMeta(expr.MetaKeyL4PROTO, reg32(word)),
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: reg32(word + 1), Direction: 0}, // IP_CT_DIR_ORIGINAL
		inSet(set, false),
	})
}

// hairpinRules decide which traffic to a published port is masqueraded. All other traffic
// keeps its source address.
func hairpinRules() []staticRule {
	return []staticRule{
		{"from its own network, itself too", jump(chainNeighbours)},
		{"", rule(inLoopback(true), masquerade())},
		{"", rule(addrsIn(false, SetHairpin4), masquerade())},
		{"", rule(addrsIn(true, SetHairpin6), masquerade())},
		{"", rule(addrIn(false, false, SetMasqAll4), masquerade())},
		{"", rule(addrIn(true, false, SetMasqAll6), masquerade())},
	}
}

// toLoopback6 matches packets to ::1. Sent to a container and masqueraded, the request
// arrives, but the answer does not: Linux routes ::1 on the loopback device only, and IPv6
// has no route_localnet. So a client gets a refusal at once and tries 127.0.0.1, or reaches
// a server of the host.
func toLoopback6() match {
	return rule(family(true), MatchPrefix(netip.PrefixFrom(netip.IPv6Loopback(), 128), false, expr.CmpOpEq))
}

// inLoopback matches a source or destination in 127.0.0.0/8.
func inLoopback(source bool) match {
	lo := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	return rule(family(false), MatchPrefix(lo, source, expr.CmpOpEq))
}

// loopbackGuard drops packets for 127.0.0.0/8 from guarded interfaces. It runs before
// connection tracking restores the address in answers to 127.0.0.1.
func loopbackGuard() match {
	return rule(inLoopback(false), match{
		loadMeta(expr.MetaKeyIIFNAME, reg1), inSet(SetLocalNet, false),
	}, verdict(expr.VerdictDrop))
}
