// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
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
// The first attachment with a prefix length creates the set and the rule. They remain
// afterwards, because they do nothing without elements.
const (
	SetSameNet4    = "samenet4"    // container . its network: do not masquerade
	SetSameNet6    = "samenet6"    //
	SetNeighbours4 = "neighbours4" // container . its network: masquerade published traffic from this network
	SetNeighbours6 = "neighbours6" //

	chainSameNet    = "samenet"
	chainNeighbours = "neighbours"
)

// within returns the element by which an attachment puts its address into a network.
func within(set4, set6 string, a netip.Addr, network netip.Prefix, comment string) Element {
	network = network.Masked()
	return Element{
		Set:     of(a, set4, set6) + "_" + strconv.Itoa(network.Bits()),
		Key:     append(Addr(a), Addr(network.Addr())...),
		Comment: CleanComment(comment),
	}
}

// chain returns the chain whose rules use a set for one prefix length.
func (s setSpec) chain() string {
	if strings.HasPrefix(s.name, SetSameNet4) || strings.HasPrefix(s.name, SetSameNet6) {
		return chainSameNet
	}
	return chainNeighbours
}

// rule returns the chain's rule for the set.
func (s setSpec) rule() match {
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

// addRule queues the rule for a set of one prefix length.
func (s setSpec) addRule(enc *nftables.Conn) {
	enc.AddRule(&nftables.Rule{Table: s.table(), Chain: &nftables.Chain{Name: s.chain(), Table: s.table()}, Exprs: s.rule()})
}

// lengthsIn returns the sets of a table that serve one prefix length each.
func lengthsIn(sets []string) (specs []setSpec) {
	for _, name := range sets {
		if s, ok := specOf(name); ok && s.length > 0 {
			specs = append(specs, s)
		}
	}
	return specs
}

// setNames returns the sets and maps of one of our tables. A missing table has none.
func (c *Conn) setNames(f nftables.TableFamily) (names []string, err error) {
	msgs, err := c.list(query{get: unix.NFT_MSG_GETSET, family: f, table: TableName})
	for _, m := range msgs {
		a, err := message(m)
		if err != nil {
			return nil, err
		}
		if a.Text(unix.NFTA_SET_TABLE) == TableName {
			names = append(names, a.Text(unix.NFTA_SET_NAME))
		}
	}
	return names, err
}

// wrongLengths compares a chain's rules for prefix lengths with the sets. wrongLengths accepts
// two equal rules, which do no harm.
func wrongLengths(chain string, rules []Rule, specs []setSpec) (diffs []string) {
	known := 0
	for _, s := range specs {
		if s.chain() != chain {
			continue
		}
		found := false
		for _, r := range rules {
			if sameRule(byte(s.family), r.Exprs, s.rule()) {
				found = true
				known++
			}
		}
		if !found {
			diffs = append(diffs, fmt.Sprintf("the rule of set %s is missing from chain %s of table inet %s", s.name, chain, TableName))
		}
	}
	if known < len(rules) {
		diffs = append(diffs, fmt.Sprintf("chain %s of table inet %s has rules that are not ours", chain, TableName))
	}
	return diffs
}

// rebuildLengths queues the rules for prefix lengths again.
func rebuildLengths(enc *nftables.Conn, specs []setSpec) {
	t := layoutOf(nftables.TableFamilyINet).table()
	for _, name := range [...]string{chainSameNet, chainNeighbours} {
		enc.FlushChain(&nftables.Chain{Name: name, Table: t})
	}
	for _, s := range specs {
		s.addRule(enc)
	}
}
