// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/prefix"
)

const (
	notOfPod = "not an address of this pod"
	unjudged = "no policy can judge it"
	notToPod = "about a packet to somebody else"
)

func noAddr4() netip.Prefix { return netip.PrefixFrom(netip.IPv4Unspecified(), 32) }
func noAddr6() netip.Prefix { return netip.PrefixFrom(netip.IPv6Unspecified(), 128) }

// ownSources returns the rules of the chain at the hook prerouting, with the sets of a table.
func ownSources(table nftables.TableFamily, all, v4, v6 string) []staticRule {
	iif, accept := loadMeta(expr.MetaKeyIIFNAME, reg1), verdict(expr.VerdictAccept)
	return []staticRule{
		{"", rule(ipFamily(table, false), match{iif, loadAddr(false, true, unix.NFT_REG_2), inSet(v4, false)}, accept)},
		{"", rule(ipFamily(table, true), match{iif, loadAddr(true, true, unix.NFT_REG_2), inSet(v6, false)}, accept)},
		{"", rule(match{iif, inSet(all, false)}, goTo(chainSourcesOther))},
	}
}

// linkOther returns the rules for packets of a pod's link from an address that is not in the sets. A link-local
// address is no other pod's, and network policies judge its packets. They cannot judge packets from the unspecified
// address, which fib would let pass to multicast.
func linkOther() []staticRule {
	const inet = nftables.TableFamilyINet
	forged := match{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: CountForged + "\x00"}} // the kernel returns the name with the zero byte
	drop := goTo(ChainForged)
	rules := append(neighbours(inet, noAddr6()), staticRule{"", from(inet, prefix.LinkLocal(), verdict(expr.VerdictAccept))}, dhcp(inet, 68, 67, noAddress()))
	for _, p := range [...]netip.Prefix{noAddr4(), noAddr6()} {
		rules = append(rules, staticRule{notOfPod, from(inet, p, forged, drop)})
	}
	routes := match{loadMeta(expr.MetaKeyIIFNAME, reg1), &expr.Dynset{SrcRegKey: reg1, SetName: setRouters, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: 24 * time.Hour}}
	return append(rules, staticRule{notOfPod, rule(notBehind(), forged, drop)}, staticRule{"", routes})
}

// errorsFrom returns the rules that judge errors of ICMP, before a source is accepted.
func errorsFrom(table nftables.TableFamily, all string) []staticRule {
	iif := match{loadMeta(expr.MetaKeyIIFNAME, reg1), inSet(all, false)}
	return []staticRule{
		{"", rule(icmp4Types(table, 3, 12), iif, jump(chainSourcesError))},
		{"", rule(icmp6Types(table, 0, 127, MatchPrefix(noAddr6(), true, expr.CmpOpNeq)), iif, jump(chainSourcesError))},
	}
}

// errorAt is where the packet begins in an error of ICMP.
const errorAt = 8

// insideErrors returns the rules for errors of ICMP from pods: the packet in them must have been sent to the pod. Echo
// requests and the router messages of RFC 1256 are no errors.
func insideErrors(table nftables.TableFamily, v4, v6 string, more ...staticRule) []staticRule {
	inside := func(offset, size uint32, set string) match {
		return match{loadMeta(expr.MetaKeyIIFNAME, reg1), &expr.Payload{DestRegister: unix.NFT_REG_2, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: size}, inSet(set, false)}
	}
	back := verdict(expr.VerdictReturn)
	rules := append([]staticRule{
		{"", rule(icmp4Types(table, 8, 10), back)},
		{"", rule(ipFamily(table, false), inside(errorAt+16, 4, v4), back)},
		{"", rule(ipFamily(table, true), inside(errorAt+24, 16, v6), back)},
	}, more...)
	drop := verdict(expr.VerdictDrop)
	if table != nftables.TableFamilyBridge {
		drop = rule(match{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: CountForged + "\x00"}}, goTo(ChainForged))
	}
	return append(rules, staticRule{notToPod, drop})
}

// portChains returns the chains of the table bridge. The table inet never sees a frame with a VLAN tag between two
// ports. And after the bridge, the host unwraps a packet from two tags whose number is 0.
func portChains() []chainSpec {
	at := func(key expr.MetaKey, set, chain string) staticRule {
		return staticRule{"", rule(match{loadMeta(key, reg1), inSet(set, false)}, goTo(chain))}
	}
	own := ownSources(nftables.TableFamilyBridge, SetPort, SetPort4, SetPort6)
	tagged := tags(match{loadMeta(expr.MetaKeyIIFNAME, reg1), inSet(SetPort, false)})
	return []chainSpec{
		{name: chainSourcesError, rules: insideErrors(nftables.TableFamilyBridge, setPortIns4, setPortIns6)},
		{name: chainSourcesOther, rules: portOther()},
		atPrerouting(slices.Concat(tagged, errorsFrom(nftables.TableFamilyBridge, SetPort), own)),
		{name: chainSourcesTo, rules: toPort()},
		{name: chainSourcesOut, typ: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, prio: prioSources,
			rules: []staticRule{at(expr.MetaKeyOIFNAME, SetPortIn, chainSourcesTo)}},
	}
}

// portOther returns the rules for frames of a pod's port from an address that is not in the sets. No policy judges
// packets from a link-local address.
func portOther() []staticRule {
	const bridge = nftables.TableFamilyBridge
	rules := append(append(routers(bridge), neighbours(bridge, prefix.LinkLocal())...), neighbours(bridge, noAddr6())...)
	open := match{loadMeta(expr.MetaKeyIIFNAME, reg1), inSet(SetPortOut, true)}
	return append(rules,
		staticRule{"", from(bridge, prefix.LinkLocal(), open, verdict(expr.VerdictAccept))},
		dhcp(bridge, 68, 67, noAddress()), dhcp6(546, 547, nil), arp(), staticRule{notOfPod, verdict(expr.VerdictDrop)})
}

// toPort returns the rules for frames that another port sends to a port in SetPortIn. Answers of DHCP, which may make the
// sender the pod's gateway and its name server, come only from ports that no pod has, such as an uplink.
func toPort() []staticRule {
	const bridge = nftables.TableFamilyBridge
	oif, accept := loadMeta(expr.MetaKeyOIFNAME, reg1), verdict(expr.VerdictAccept)
	rules := append(tags(nil),
		staticRule{"", rule(ipFamily(bridge, false), match{oif, loadAddr(false, false, unix.NFT_REG_2), inSet(SetPort4, false)}, accept)},
		staticRule{"", rule(ipFamily(bridge, true), match{oif, loadAddr(true, false, unix.NFT_REG_2), inSet(SetPort6, false)}, accept)})
	rules = append(append(rules, neighbours(bridge, prefix.LinkLocal())...), neighbours(bridge, noAddr6())...)
	rules = append(rules, staticRule{"", icmp6(bridge, 133, 137, hops255())}) // also from an address of a pod
	outside := match{loadMeta(expr.MetaKeyIIFNAME, reg1), inSet(SetPort, true)}
	return append(rules, dhcp(bridge, 67, 68, outside), dhcp6(547, 546, outside), arp(), staticRule{unjudged, verdict(expr.VerdictDrop)})
}

// tags returns the rules that drop frames with a VLAN tag.
func tags(of match) (rules []staticRule) {
	for _, proto := range [...]uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} {
		tag := match{&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseLLHeader, Offset: 12, Len: 2}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{byte(proto >> 8), byte(proto)}}}
		rules = append(rules, staticRule{"a VLAN tag", rule(tag, of, verdict(expr.VerdictDrop))})
	}
	return rules
}

func arp() staticRule {
	return staticRule{"", rule(etherType(unix.ETH_P_ARP), verdict(expr.VerdictAccept))}
}

// dhcp accepts DHCP from one port to another if of matches.
func dhcp(table nftables.TableFamily, source, dest uint16, of match) staticRule {
	return staticRule{"DHCP", rule(ipFamily(table, false), of, udp(source, dest), verdict(expr.VerdictAccept))}
}

// noAddress matches packets of a DHCP client that has no address yet.
func noAddress() match { return MatchPrefix(noAddr4(), true, expr.CmpOpEq) }

// dhcp6 accepts DHCPv6 from one port to another if of matches. Both ends have link-local addresses, also when a lease is
// renewed.
func dhcp6(source, dest uint16, of match) staticRule {
	return staticRule{"DHCPv6", from(nftables.TableFamilyBridge, prefix.LinkLocal(), of, udp(source, dest), verdict(expr.VerdictAccept))}
}

// udp matches UDP from one port to another.
func udp(source, dest uint16) match {
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, source), dest)
	return rule(metaIs(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{unix.IPPROTO_UDP}),
		match{&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Len: 4}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: ports}})
}

// neighbours returns the rules that accept neighbour discovery, which no router has forwarded, and
// multicast listener discovery.
func neighbours(table nftables.TableFamily, source netip.Prefix) []staticRule {
	by := MatchPrefix(source, true, expr.CmpOpEq)
	return []staticRule{
		{"", icmp6(table, 133, 137, by, hops255())},
		{"", icmp6(table, 130, 132, by)},
		{"", icmp6(table, 143, 143, by)},
	}
}

// routers returns the rules that drop messages that only a router sends: advertisements and redirects. A pod that
// accepts a forged one would send its packets to another pod. The kernel ignores them if the hop limit is below 255.
func routers(table nftables.TableFamily) []staticRule {
	drop := verdict(expr.VerdictDrop)
	return []staticRule{
		{"a router", rule(icmp6Types(table, 134, 134, hops255()), drop)},
		{"a router", rule(icmp6Types(table, 137, 137, hops255()), drop)},
	}
}

// icmp6 accepts ICMPv6 of a range of types.
func icmp6(table nftables.TableFamily, first, last byte, conditions ...match) match {
	return rule(icmp6Types(table, first, last, conditions...), verdict(expr.VerdictAccept))
}

// icmp6Types matches ICMPv6 of a range of types. The conditions of the protocol come first: otherwise nft 1.0.6, when
// it loads its own listing, writes the family in another form.
func icmp6Types(table nftables.TableFamily, first, last byte, conditions ...match) match {
	return rule(ipFamily(table, true), rule(conditions...), icmpTypes(unix.IPPROTO_ICMPV6, first, last))
}

// icmp4Types matches ICMP of a range of types that comes from an address.
func icmp4Types(table nftables.TableFamily, first, last byte) match {
	return rule(ipFamily(table, false), MatchPrefix(noAddr4(), true, expr.CmpOpNeq), icmpTypes(unix.IPPROTO_ICMP, first, last))
}

func icmpTypes(proto, first, last byte) match {
	types := metaIs(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{proto})
	types = append(types, &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Len: 1})
	if first == last {
		types = append(types, &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{first}})
	} else {
		types = append(types, &expr.Cmp{Op: expr.CmpOpGte, Register: reg1, Data: []byte{first}}, &expr.Cmp{Op: expr.CmpOpLte, Register: reg1, Data: []byte{last}})
	}
	return types
}

// hops255 matches IPv6 packets with the hop limit 255.
func hops255() match {
	return match{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: 7, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{255}},
	}
}

// from matches packets from addresses.
func from(table nftables.TableFamily, p netip.Prefix, then ...match) match {
	return rule(append([]match{ipFamily(table, p.Addr().Is6()), MatchPrefix(p, true, expr.CmpOpEq)}, then...)...)
}

// ipFamily matches packets of one family in a table.
func ipFamily(table nftables.TableFamily, v6 bool) match {
	if table != nftables.TableFamilyBridge {
		return family(v6)
	}
	if v6 {
		return etherType(unix.ETH_P_IPV6)
	}
	return etherType(unix.ETH_P_IP)
}

// etherType matches frames by the protocol behind the Ethernet header, and behind one VLAN tag.
func etherType(proto uint16) match {
	return metaIs(expr.MetaKeyPROTOCOL, expr.CmpOpEq, []byte{byte(proto >> 8), byte(proto)})
}
