// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
)

// Some of our chains are in the table only while something needs them. Their agent compares these chains
// with what it wants; Verify does not.

// wrongChain is a chain that is missing or differs.
type wrongChain struct {
	chainSpec
	misplaced bool // it exists at another hook, or drops by policy
}

// wrongChains returns the wanted chains that the kernel lacks, or has with other rules.
func (c *Conn) wrongChains(family nftables.TableFamily, want []chainSpec) (wrong []wrongChain, err error) {
	return c.wrongChainsOf(family, TableName, want)
}

func (c *Conn) wrongChainsOf(family nftables.TableFamily, table string, want []chainSpec) (wrong []wrongChain, err error) {
	for _, w := range want {
		have, err := c.chain(Ref{family, table, w.name})
		if err != nil {
			return nil, err
		}
		misplaced := have != nil && (!w.at(have) || have.Drops)
		if have != nil && !misplaced {
			if w.keep {
				continue
			}
			rules, err := c.ListRules(family, table, w.name)
			if err != nil {
				return nil, err
			}
			if slices.EqualFunc(rules, w.rules, func(r Rule, s staticRule) bool { return sameRule(byte(family), r.Exprs, s.exprs) }) {
				continue
			}
		}
		wrong = append(wrong, wrongChain{w, misplaced})
	}
	return wrong, nil
}

// chain returns a chain, or nil if there is none.
func (c *Conn) chain(r Ref) (have *Chain, err error) {
	err = c.ask([]query{r.query()}, func(_ int, answer []netlink.Message) error {
		for _, m := range answer {
			a, err := message(m)
			if err != nil {
				return err
			}
			ch := decodeChain(a)
			have = &ch
		}
		return nil
	})
	return have, err
}

// replace queues the chain with its rules. A chain at another hook can only be made again.
func (w wrongChain) replace(enc *nftables.Conn, t *nftables.Table) {
	if w.misplaced {
		dropChain(enc, t, w.name)
	}
	w.add(enc, t, true)
}

// kept returns the values of a list at whose index keep is true.
func kept[T any](list []T, keep func(i int) bool) (out []T) {
	for i, x := range list {
		if keep(i) {
			out = append(out, x)
		}
	}
	return out
}

// dropObjects queues the deletion of chains and sets. What was made last goes first.
func dropObjects(enc *nftables.Conn, t *nftables.Table, chains []string, sets []setSpec) {
	for _, name := range slices.Backward(chains) {
		dropChain(enc, t, name)
	}
	for _, s := range sets {
		enc.DelSet(&nftables.Set{Name: s.name, Table: t})
	}
}

func dropChain(enc *nftables.Conn, t *nftables.Table, name string) {
	chain := &nftables.Chain{Name: name, Table: t}
	enc.FlushChain(chain)
	enc.DelChain(chain)
}
