// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Most nodes never use some of the sets. A rule that looks up such a set would cost every packet, or
// every new connection, up to 0.1 microseconds. So the transaction with a set's first element makes the set, and its
// rules in chains that are empty at first. Set and rules remain afterwards, because they do nothing without elements.
// The sets tell Verify and Rebuild which rules must exist.
const (
	chainClosed  = "closed"  // drops what isolated and internal networks must not forward
	chainSpan    = "span"    // accepts what internal networks forward to other hosts
	chainAnyPort = "anyport" // masquerades with a random port
)

// demandChains are the chains of such rules.
func demandChains() []string {
	return []string{chainSameNet, chainNeighbours, chainClosed, chainSpan, chainAnyPort}
}

// chain returns the chain whose rules look up the set. The order of the rules in these chains does
// not matter.
func (s setSpec) chain() string {
	kind, _, _ := strings.Cut(s.name, "_")
	switch kind {
	case SetIsolation, SetInternal, SetDivided4, SetDivided6:
		return chainClosed
	case SetSpan4, SetSpan6:
		return chainSpan
	case SetSameNet4, SetSameNet6, SetExempt4, SetExempt6:
		return chainSameNet
	case SetAnyPort4, SetAnyPort6:
		return chainAnyPort
	}
	return chainNeighbours
}

// rules returns the rules of chain() that look up the set.
func (s setSpec) rules() []match {
	v6 := s.key[0] == fieldIPv6
	in, out := loadMeta(expr.MetaKeyIIFNAME, reg1), loadMeta(expr.MetaKeyOIFNAME, reg1)
	set := inSet(s.name, false)
	kind, _, _ := strings.Cut(s.name, "_")
	switch kind {
	case SetIsolation:
		return []match{rule(match{in, set, out, set}, jump(chainIsolated))}
	case SetInternal:
		return []match{rule(match{in, set}, jump(chainInternal)), rule(match{out, set}, jump(chainInternal))}
	case SetSpan4, SetSpan6:
		return s.span()
	case SetDivided4, SetDivided6:
		return []match{s.divided()}
	case SetExempt4, SetExempt6:
		return []match{rule(addrsIn(v6, s.name), verdict(expr.VerdictAccept))}
	case SetAnyPort4, SetAnyPort6:
		return []match{rule(addrsIn(v6, s.name), match{&expr.Masq{FullyRandom: true}})}
	case SetMasqAll4, SetMasqAll6:
		return []match{rule(addrIn(v6, false, s.name), masquerade())}
	}
	return []match{s.within()}
}

// addRules queues the rules that look up the set.
func (s setSpec) addRules(enc *nftables.Conn) {
	for _, r := range s.rules() {
		enc.AddRule(&nftables.Rule{Table: s.table(), Chain: &nftables.Chain{Name: s.chain(), Table: s.table()}, Exprs: r})
	}
}

// demanded returns those of a table's sets that come with rules.
func demanded(sets []string) (specs []setSpec) {
	for _, name := range sets {
		if s, ok := specOf(name); ok && s.onDemand {
			specs = append(specs, s)
		}
	}
	return specs
}

// setNames returns the sets and maps of one of our tables. A missing table has none.
func (c *Conn) setNames(f nftables.TableFamily) (names []string, err error) {
	return c.setNamesOf(f, TableName)
}

func (c *Conn) setNamesOf(f nftables.TableFamily, table string) (names []string, err error) {
	msgs, err := c.list(query{get: unix.NFT_MSG_GETSET, family: f, table: table})
	for _, m := range msgs {
		a, err := message(m)
		if err != nil {
			return nil, err
		}
		if a.Text(unix.NFTA_SET_TABLE) == table {
			names = append(names, a.Text(unix.NFTA_SET_NAME))
		}
	}
	return names, err
}

// wrongRules compares a chain's rules with the sets on demand. wrongRules accepts two equal
// rules, which do no harm.
func wrongRules(chain string, rules []Rule, specs []setSpec) (diffs []string) {
	known := 0
	for _, s := range specs {
		if s.chain() != chain {
			continue
		}
		for _, want := range s.rules() {
			found := false
			for _, r := range rules {
				if sameRule(byte(s.family), r.Exprs, want) {
					found = true
					known++
				}
			}
			if !found {
				diffs = append(diffs, fmt.Sprintf("the rule of set %s is missing from chain %s of table inet %s", s.name, chain, TableName))
			}
		}
	}
	if known < len(rules) {
		diffs = append(diffs, fmt.Sprintf("chain %s of table inet %s has rules that are not ours", chain, TableName))
	}
	return diffs
}

// rebuildRules queues the rules of sets on demand again.
func rebuildRules(enc *nftables.Conn, specs []setSpec) {
	t := layoutOf(nftables.TableFamilyINet).table()
	for _, name := range demandChains() {
		enc.FlushChain(&nftables.Chain{Name: name, Table: t})
	}
	for _, s := range specs {
		s.addRules(enc)
	}
}

// dropRanges queues the removal of sets that masqueraded whole networks, and of their chain. Tables older than schema
// 8 have them, from schema 2 on without elements. Rules of other chains may look them up, too.
func dropRanges(enc *nftables.Conn, have []string) {
	t := layoutOf(nftables.TableFamilyINet).table()
	chain := &nftables.Chain{Name: "ranges", Table: t}
	enc.AddChain(chain) // if another program has deleted it, the removal must not fail
	enc.FlushChain(chain)
	enc.DelChain(chain)
	rebuildRules(enc, demanded(have))
	for _, name := range have {
		if ofRanges(name) {
			enc.DelSet(&nftables.Set{Table: t, Name: name})
		}
	}
}

// ofRanges reports whether the name is that of a set that dropRanges removes.
func ofRanges(set string) bool {
	switch set {
	case "masq4", "masq6", "nomasq4", "nomasq6", "hairpin4", "hairpin6":
		return true
	}
	return false
}
