// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// Lost names the parts of chain, maps and jump that differ from what Ensure creates.
func (c *Conditions) Lost(conn *Conn) (lost []string, err error) {
	v4, v6, err := c.parse()
	if err != nil {
		return nil, err
	}
	f := nftables.TableFamilyINet
	sets, err := conn.setNames(f)
	if err != nil {
		return nil, err
	}
	for _, name := range c.Maps() {
		if !slices.Contains(sets, name) {
			lost = append(lost, fmt.Sprintf("map %s is missing", name))
		}
	}
	rules, err := conn.ListRules(f, TableName, c.chainName())
	if err != nil {
		return nil, err
	}
	if !slices.EqualFunc(rules, c.rules(v4, v6), func(have Rule, want match) bool { return sameRule(byte(f), have.Exprs, want) }) {
		lost = append(lost, fmt.Sprintf("the rules of chain %s were changed", c.chainName()))
	}
	jumps, err := conn.ListRules(f, TableName, chainConditional)
	if err == nil && !slices.ContainsFunc(jumps, func(r Rule) bool { return r.JumpsTo(c.chainName()) }) {
		lost = append(lost, fmt.Sprintf("nothing jumps to chain %s", c.chainName()))
	}
	return lost, err
}

// Restore is Ensure that also mends a chain, maps and a jump that were changed. It is for
// repair: queue it instead of Ensure.
func (c *Conditions) Restore() Extra { return conditionsExtra{Conditions: c, mends: true} }

// planMend compares the chain, the maps and the jump with what Ensure creates.
func (x conditionsExtra) planMend(c *Conn) (func(*nftables.Conn) error, error) {
	lost, err := x.Lost(c)
	if err != nil || len(lost) == 0 {
		return nil, err
	}
	return x.mend(c)
}

// mend fills the chain anew and keeps the elements of the maps.
func (c *Conditions) mend(conn *Conn) (func(*nftables.Conn) error, error) {
	t := &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
	v4, v6, err := c.parse()
	if err != nil {
		return nil, err
	}
	sets, err := conn.setNames(t.Family)
	if err != nil {
		return nil, err
	}
	jumps, err := conn.ListRules(t.Family, t.Name, chainConditional)
	if err != nil {
		return nil, err
	}
	return func(enc *nftables.Conn) error {
		for _, name := range c.Maps() {
			if spec, _ := specOf(name); !slices.Contains(sets, name) {
				if err := enc.AddSet(spec.set(), nil); err != nil {
					return fmt.Errorf("add map %s: %w", name, err)
				}
			}
		}
		chain := enc.AddChain(&nftables.Chain{Name: c.chainName(), Table: t})
		enc.FlushChain(chain)
		for _, r := range c.rules(v4, v6) {
			enc.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: r})
		}
		if !slices.ContainsFunc(jumps, func(r Rule) bool { return r.JumpsTo(c.chainName()) }) {
			c.addJump(enc, t)
		}
		return nil
	}, nil
}
