// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
)

// Verify compares the static chains and rules of our tables with what this
// program writes and names every difference: for doctor, CHECK and repair. It
// finds what `nft flush table` and changes by hand leave; the operator's chain,
// the networks' chains and elements are not looked at. A table that is not
// there is no difference: it is made when it is needed.
func (c *Conn) Verify() (diffs []string, err error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	families := []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge}
	states, err := c.states(families)
	if err != nil {
		return nil, err
	}
	for _, s := range states {
		if !s.present {
			continue
		}
		for _, chain := range layoutOf(s.family).chains {
			d, err := c.verifyChain(s.family, chain)
			if err != nil {
				return nil, err
			}
			diffs = append(diffs, d...)
		}
	}
	return diffs, nil
}

// states looks at the schema of our tables.
func (c *Conn) states(families []nftables.TableFamily) ([]state, error) {
	var what []lookup
	for _, f := range families {
		what = append(what, schemaLookup(f))
	}
	got, err := c.get(what)
	if err != nil {
		return nil, err
	}
	var out []state
	for i, f := range families {
		s, err := stateFrom(f, got[i])
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (c *Conn) verifyChain(f nftables.TableFamily, want chainSpec) ([]string, error) {
	name := fmt.Sprintf("chain %s of table %s %s", want.name, familyName(f), TableName)
	present, err := c.HasChain(f, TableName, want.name)
	switch {
	case err != nil:
		return nil, err
	case !present:
		return []string{name + " is missing"}, nil
	case want.keep:
		return nil, nil
	}
	rules, err := c.ListRules(f, TableName, want.name)
	switch {
	case err != nil:
		return nil, err
	case len(rules) != len(want.rules):
		return []string{fmt.Sprintf("%s has %d rules, not %d", name, len(rules), len(want.rules))}, nil
	}
	var diffs []string
	for i, r := range want.rules {
		if !sameRule(byte(f), rules[i].Exprs, r.exprs) {
			diffs = append(diffs, fmt.Sprintf("rule %d in %s was changed", i+1, name))
		}
	}
	return diffs, nil
}

// Rebuild puts the static chains and rules of the tables that exist back as
// they should be, in one transaction; elements, the operator's chain and the
// networks' chains stay.
func (c *Conn) Rebuild(ctx context.Context) error {
	if err := c.dial(); err != nil {
		return err
	}
	states, err := c.states([]nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge})
	if err != nil {
		return err
	}
	msgs, err := encode(func(enc *nftables.Conn) error {
		for _, s := range states {
			if !s.present {
				continue
			}
			if err := layoutOf(s.family).upgrade(enc, s.schema, Schema()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(msgs) == 0 || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	return c.send(msgs)
}
