// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"strconv"

	"github.com/google/nftables/expr"
)

// Two addresses share a network if an attachment says so; this is not a property of the node.
// Therefore an attachment has an element with its own address and the first address of its
// network. For each prefix length in use there is a plain set, because networks of different
// lengths may have the same first address. A rule masks the address of the other end and looks
// it up in the set:
//
//	set samenet4_24 { type ipv4_addr . ipv4_addr; elements = { 10.1.0.5 . 10.1.0.0 } }
//	chain samenet { ip saddr . ip daddr & 255.255.255.0 @samenet4_24 accept }
//
// The first attachment with a prefix length makes the set and the rule (ondemand.go).
const (
	SetSameNet4    = "samenet4"    // container . its network: do not masquerade
	SetSameNet6    = "samenet6"    //
	SetNeighbours4 = "neighbours4" // container . its network: masquerade published traffic from this network
	SetNeighbours6 = "neighbours6" //

	chainSameNet    = "samenet"
	chainNeighbours = "neighbours"
)

// within returns the element by which an attachment puts its address into a network. comment is a clean one.
func within(set4, set6 string, a netip.Addr, network netip.Prefix, comment string) Element {
	network = network.Masked()
	return Element{
		Set:     of(a, set4, set6) + "_" + strconv.Itoa(network.Bits()),
		Key:     append(Addr(a), Addr(network.Addr())...),
		Comment: comment,
	}
}

// within returns the rule for the set of one prefix length.
func (s setSpec) within() match {
	v6 := s.key[0] == fieldIPv6
	second := reg32(1)
	if v6 {
		second = reg32(4)
	}
	end := verdict(expr.VerdictAccept)
	byContainer := s.chain() == chainSameNet // in this chain the container is the source
	if !byContainer {
		end = masquerade()
	}
	load := match{loadAddr(v6, byContainer, reg1), loadAddr(v6, !byContainer, second)}
	return rule(family(v6), load, masked(second, s.length, s.key[0].size()), match{inSet(s.name, false)}, end)
}
