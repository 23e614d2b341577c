// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/google/nftables/expr"
)

// The rest of a network may be on other hosts, behind any link. Only addresses identify it. But a host has
// an address in the network, too: the first of its block, on its bridge. The kernel may choose this address
// for packets that the host masquerades, so a packet from it does not come from a container of the network.
// The address is recognised by its last bits, so no rule needs a list of hosts:
//
//	set span4_24 { type ipv4_addr . ipv4_addr; flags interval; elements = { 10.1.0.0/16 . 10.1.0.0/16 } }
//	chain span { ip saddr & 0.0.0.255 != 0.0.0.1 ip daddr & 0.0.0.255 != 0.0.0.1 ip saddr . ip daddr @span4_24 goto spanned }
//
// The first network whose hosts have blocks of a length makes the set and its rules (ondemand.go).
const (
	SetSpan4    = "span4"    // range . range: both are one internal network that spans hosts
	SetSpan6    = "span6"    //
	SetDivided4 = "divided4" // range . range: two networks that span hosts and do not forward to each other
	SetDivided6 = "divided6" //
)

// Span returns the element that lets internal bridges forward between the containers of a network that
// spans hosts. bits is the prefix length of a host's block. A host's own address does not count as a
// container's.
func Span(network netip.Prefix, bits int, comment string) Element {
	return blocks(SetSpan4, SetSpan6, network, network, bits, comment)
}

// Divided returns the element that stops forwarding from the containers of one network to another network of
// the same family. bits is the prefix length of a host's block in the first one.
func Divided(from, to netip.Prefix, bits int, comment string) Element {
	return blocks(SetDivided4, SetDivided6, from, to, bits, comment)
}

func blocks(set4, set6 string, from, to netip.Prefix, bits int, comment string) Element {
	return pair(of(from.Addr(), set4, set6)+"_"+strconv.Itoa(bits), from, to, comment)
}

// span returns the rules for the set of one length. An error message about a connection (ICMP) may come
// from a host itself.
func (s setSpec) span() []match {
	v6, to := s.key[0] == fieldIPv6, goTo(chainSpanned)
	return []match{
		rule(family(v6), s.notHost(true), s.notHost(false), addrs(v6), match{inSet(s.name, false)}, to),
		rule(related(), family(v6), addrs(v6), match{inSet(s.name, false)}, to),
	}
}

// spannedRules returns the rules for packets within a span. A container of another network may send from an
// address of the span, so the way back to the address must be the link from which the packet came. Linux 5.10
// refuses this match at the hook forward: so no rule leads here before a network spans hosts.
func spannedRules() (rules []staticRule) {
	for _, kind := range [...]string{"bridge", "veth"} {
		behind := metaIs(metaIIFKind, expr.CmpOpEq, IfName(kind))
		rules = append(rules, staticRule{"from an address that is not there", rule(behind, notBehind(), verdict(expr.VerdictDrop))})
	}
	return append(rules, staticRule{"", verdict(expr.VerdictAccept)})
}

// divided returns the rule for the set of one length.
func (s setSpec) divided() match {
	v6 := s.key[0] == fieldIPv6
	return rule(family(v6), s.notHost(true), addrs(v6), match{inSet(s.name, false)}, jump(chainDivided))
}

// dividedRules returns the rules for packets of a container to an isolated network that is not its own. The
// container may answer a host that has an address in that network.
func dividedRules() []staticRule {
	return []staticRule{
		{"answers", rule(answers(), verdict(expr.VerdictReturn))},
		{"", verdict(expr.VerdictDrop)},
	}
}

// notHost matches a source or destination that is not the first address of a block.
func (s setSpec) notHost(source bool) match {
	size := s.key[0].size()
	rest, first := make([]byte, size), make([]byte, size)
	for i, b := range net.CIDRMask(s.length, 8*size) {
		rest[i] = ^b
	}
	first[size-1] = 1
	return match{
		loadAddr(s.key[0] == fieldIPv6, source, reg1), bitwise(reg1, rest),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: first},
	}
}

// related matches packets that belong to another connection, such as errors (ct state related).
func related() match {
	return match{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}, bitwise(reg1, native(expr.CtStateBitRELATED)),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)},
	}
}

// answers matches packets to the end that began the connection (ct direction reply).
func answers() match {
	const reply = 1 // IP_CT_DIR_REPLY
	return match{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg1}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{reply}}}
}
