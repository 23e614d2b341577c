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

// Whether two addresses share a network is a property of an attachment, not of the node:
// one element holds the attachment's address and the first address of its network. There is
// a plain set for each prefix length in use, because equal first addresses of different
// lengths must differ, and a rule that masks the other end's address:
//
//	set samenet4_24 { type ipv4_addr . ipv4_addr; elements = { 10.1.0.5 . 10.1.0.0 } }
//	chain samenet { ip saddr . ip daddr & 255.255.255.0 @samenet4_24 accept }
//
// The first attachment of a length creates set and rule. They remain: without elements they
// do nothing.
const (
	SetSameNet4    = "samenet4"    // container . its network: not masqueraded
	SetSameNet6    = "samenet6"    //
	SetNeighbours4 = "neighbours4" // container . its network: the source of published traffic that is masqueraded
	SetNeighbours6 = "neighbours6" //

	chainSameNet    = "samenet"
	chainNeighbours = "neighbours"
)

// within makes the element of one attachment: a belongs to network.
func within(set4, set6 string, a netip.Addr, network netip.Prefix, comment string) Element {
	network = network.Masked()
	return Element{
		Set:     of(a, set4, set6) + "_" + strconv.Itoa(network.Bits()),
		Key:     append(Addr(a), Addr(network.Addr())...),
		Comment: cleanComment(comment),
	}
}

// chain is the chain whose rules look into a set for one length.
func (s setSpec) chain() string {
	if strings.HasPrefix(s.name, SetSameNet4) || strings.HasPrefix(s.name, SetSameNet6) {
		return chainSameNet
	}
	return chainNeighbours
}

// rule is the chain's rule for the set.
func (s setSpec) rule() match {
	v6 := s.key[0] == fieldIPv6
	second := reg32(1)
	if v6 {
		second = reg32(4)
	}
	end := verdict(expr.VerdictAccept)
	byContainer := s.chain() == chainSameNet // there it is the source
	if !byContainer {
		end = masquerade()
	}
	load := match{loadAddr(v6, byContainer, reg1), loadAddr(v6, !byContainer, second)}
	return rule(family(v6), load, masked(second, s.length, s.key[0].size()), match{inSet(s.name, false)}, end)
}

// addRule queues the rule of a set for one length.
func (s setSpec) addRule(enc *nftables.Conn) {
	enc.AddRule(&nftables.Rule{Table: s.table(), Chain: &nftables.Chain{Name: s.chain(), Table: s.table()}, Exprs: s.rule()})
}

// lengthsIn returns the sets for one length among the sets of a table.
func lengthsIn(sets []string) (specs []setSpec) {
	for _, name := range sets {
		if s, ok := specOf(name); ok && s.length > 0 {
			specs = append(specs, s)
		}
	}
	return specs
}

// setNames lists the sets and maps of one of our tables; a missing table has none.
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

// wrongLengths compares a chain's rules for one length with the sets. Two equal rules do no
// harm.
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

// rebuildLengths queues the rules for one length anew.
func rebuildLengths(enc *nftables.Conn, specs []setSpec) {
	t := layoutOf(nftables.TableFamilyINet).table()
	for _, name := range [...]string{chainSameNet, chainNeighbours} {
		enc.FlushChain(&nftables.Chain{Name: name, Table: t})
	}
	for _, s := range specs {
		s.addRule(enc)
	}
}
