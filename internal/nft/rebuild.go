// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// Restore compares our tables with what this program writes, and writes again what differs or has the schema of an
// earlier release. It returns the differences, one line for each. If the whole table is missing, the next change
// creates it. repair and the agent use it.
func (c *Conn) Restore(ctx context.Context) (diffs []string, err error) {
	if diffs, err = c.Verify(); err != nil {
		return nil, err
	}
	older, err := c.Outdated()
	if older != "" {
		diffs = append(diffs, older)
	}
	if len(diffs) == 0 {
		return nil, err
	}
	return diffs, errors.Join(err, c.Rebuild(ctx))
}

// Rebuild restores the existing tables in one transaction: schema number, sets, chains and
// static rules. Rebuild keeps the elements, the operator's chain and the networks' chains.
// Once a table is complete, a second transaction clears its dormant flag.
func (c *Conn) Rebuild(ctx context.Context) error {
	if err := c.dial(); err != nil {
		return err
	}
	if err := c.lock(ctx); err != nil { // an ADD may be making a set and its rule
		return err
	}
	defer func() { c.unlock(); c.unlock = nil }()
	var dormant []*Table
	msgs, err := encode(func(enc *nftables.Conn) error {
		for _, f := range families() {
			t, err := c.rebuild(enc, f)
			if err != nil {
				return err
			}
			if t != nil && t.Dormant {
				dormant = append(dormant, t)
			}
		}
		return nil
	})
	if err != nil || len(msgs) == 0 || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err := c.send(msgs); err != nil {
		return err
	}
	return c.wake(dormant)
}

// rebuild queues the repair of one table and returns the table as it is now. rebuild returns
// nil if the table does not exist.
func (c *Conn) rebuild(enc *nftables.Conn, f nftables.TableFamily) (*Table, error) {
	t, s, err := c.readOurs(f)
	if err != nil || t == nil {
		return nil, err
	}
	if !s.present {
		if !ours(s.sets) {
			return nil, notOurs(f)
		}
		if err := s.renumber(enc); err != nil {
			return nil, err
		}
	}
	l := layoutOf(f).withFastPath(s.sets).withSources(s.sets)
	t.dropWrong(enc, l)
	if slices.Contains(s.sets, SetFastPath) {
		enc.AddFlowtable(flowtable(l.table())) // the flowtable keeps its devices
	}
	if slices.Contains(l.sets, SetOwnSource) {
		addForged(enc, l)
	}
	if err := l.upgrade(enc, s.sets, s.schema, Schema()); err != nil {
		return nil, err
	}
	if f != nftables.TableFamilyINet {
		return t, nil
	}
	for _, r := range t.notConditions() {
		chain := &nftables.Chain{Name: chainConditional, Table: l.table()}
		if err := enc.DelRule(&nftables.Rule{Table: l.table(), Chain: chain, Handle: r.Handle}); err != nil {
			return nil, err
		}
	}
	rebuildRules(enc, demanded(s.sets))
	return t, nil
}

// renumber queues the schema number that a table has lost. Afterwards upgrade creates the sets
// that are missing.
func (s *state) renumber(enc *nftables.Conn) error {
	set := schemaSpec(s.family).set()
	if !slices.Contains(s.sets, SetSchema) {
		if err := enc.AddSet(set, nil); err != nil {
			return fmt.Errorf("add set %s: %w", SetSchema, err)
		}
		s.sets = append(s.sets, SetSchema)
	}
	s.present, s.schema = true, Schema()
	return enc.SetAddElements(set, []nftables.SetElement{{Key: number(0), Val: number(s.schema)}})
}

// dropWrong queues the deletion of base chains that are not ours. dropWrong also deletes our
// chains that are at another hook, because the kernel cannot move a chain.
func (t *Table) dropWrong(enc *nftables.Conn, l layout) {
	names := t.foreign(l)
	for _, want := range l.chains {
		if have := t.chain(want.name); have != nil && !want.at(have) && (want.hook != nil || have.Base) {
			names = append(names, want.name)
		}
	}
	for _, name := range names {
		ch := &nftables.Chain{Name: name, Table: l.table()}
		enc.FlushChain(ch)
		enc.DelChain(ch)
	}
}

// wake clears the dormant flag of tables.
func (c *Conn) wake(tables []*Table) error {
	if len(tables) == 0 {
		return nil
	}
	msgs, err := encode(func(enc *nftables.Conn) error {
		for _, t := range tables {
			enc.AddTable(&nftables.Table{Name: t.Name, Family: t.Family})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.send(msgs)
}

// notOurs returns the error for a table of another program that has our name.
func notOurs(f nftables.TableFamily) error {
	return fmt.Errorf("table %[1]s %[2]s has no schema number, so it is not ours: run `nft delete table %[1]s %[2]s` and then `patchbay repair`",
		FamilyName(f), TableName)
}

// unnumbered returns the error for a table without a schema number. unnumbered says why the
// number is missing and what to do.
func (c *Conn) unnumbered(f nftables.TableFamily) error {
	if sets, err := c.setNames(f); err == nil && ours(sets) {
		return fmt.Errorf("table %s %s has lost its schema number: %w", FamilyName(f), TableName, ErrDamaged)
	}
	return notOurs(f)
}
