// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// ErrDamaged means that one of our tables exists but does not work. `patchbay repair` repairs
// it.
var ErrDamaged = errors.New("run `patchbay repair`")

// families returns the families of our tables.
func families() []nftables.TableFamily {
	return []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge}
}

// Status reports whether this program could change our tables, and whether the tables work.
// Status returns an error if the kernel has no nftables, if the caller lacks CAP_NET_ADMIN, if
// a newer program made a table (*NewerSchemaError), or if a table is dormant or has lost its
// number (ErrDamaged). Status changes nothing.
func (c *Conn) Status() error {
	if err := c.dial(); err != nil {
		return err
	}
	states, err := c.states(families()...)
	if err != nil {
		return err
	}
	for _, s := range states {
		t := &Table{Family: s.family, Name: TableName}
		found, err := c.readFlags(t)
		if err != nil {
			return err
		}
		if stops := t.stops(s); found && len(stops) > 0 {
			return fmt.Errorf("%s: %w", stops[0], ErrDamaged)
		}
	}
	return nil
}

// Absent reports whether the kernel has no nftables. Then nothing of ours is in it.
func (c *Conn) Absent() bool {
	err := c.dial()
	if err == nil {
		_, err = c.generation()
	}
	for _, e := range [...]error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Verify compares our tables with what this program writes and describes every difference.
// doctor, CHECK and repair use it. Verify finds the effects of `nft flush table` and of manual
// changes. Verify does not check the operator's chain, the networks' conditions (see
// Conditions.Lost) and the elements. A missing table, or one with an older schema, is not a
// difference, because the next change creates or upgrades it.
func (c *Conn) Verify() (diffs []string, err error) {
	for _, f := range families() {
		more, err := c.VerifyTable(f)
		if err != nil {
			return nil, err
		}
		diffs = append(diffs, more...)
	}
	return diffs, nil
}

// verified is what VerifyTable found in a generation of the ruleset.
type verified struct {
	generation []byte
	diffs      []string
}

// VerifyTable does the work of Verify for one table, in six requests. If the ruleset's generation is that
// of the last call, VerifyTable returns the last answer after one request. This saves time because several
// plugins of a chain, and doctor for each attachment, ask about the same table.
func (c *Conn) VerifyTable(f nftables.TableFamily) (diffs []string, err error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	generation, err := c.generation()
	if err != nil {
		return nil, err
	}
	if last := c.verified[byte(f)]; last.generation != nil && bytes.Equal(last.generation, generation) {
		return slices.Clone(last.diffs), nil
	}
	if diffs, err = c.verifyTwice(f); err != nil {
		return nil, err
	}
	if c.verified == nil {
		c.verified = make(map[byte]verified)
	}
	c.verified[byte(f)] = verified{generation, slices.Clone(diffs)} // a change during the reading has another generation
	return diffs, nil
}

// verifyTwice verifies a table. If it finds a difference, it reads the table again, because another
// process may have written in between.
func (c *Conn) verifyTwice(f nftables.TableFamily) (diffs []string, err error) {
	diffs, err = c.verifyOnce(f)
	if err != nil || len(diffs) == 0 {
		return nil, err
	}
	again, err := c.verifyOnce(f)
	return slices.DeleteFunc(diffs, func(d string) bool { return !slices.Contains(again, d) }), err
}

func (c *Conn) verifyOnce(f nftables.TableFamily) (diffs []string, err error) {
	t, s, err := c.readOurs(f)
	if err != nil || t == nil {
		return nil, err
	}
	if diffs = t.stops(s); s.present && s.schema < Schema() {
		return diffs, nil
	}
	if !s.present && !ours(s.sets) {
		return []string{fmt.Sprintf("%s has no schema number, so it is not ours", t)}, nil
	}
	return append(diffs, t.compare(s)...), nil
}

// Outdated says which tables have the schema of an earlier release, or returns "". The next transaction, or
// Rebuild, upgrades them.
func (c *Conn) Outdated() (text string, err error) {
	if err := c.dial(); err != nil {
		return "", err
	}
	tables, err := c.states(families()...)
	var list []string
	for _, s := range tables {
		if s.present && s.schema < Schema() {
			list = append(list, fmt.Sprintf("table %s %s has schema %d and must be upgraded to %d", FamilyName(s.family), TableName, s.schema, Schema()))
		}
	}
	return strings.Join(list, ", "), err
}

// readOurs reads one of our tables with its schema number and its sets. readOurs returns nil
// if the table does not exist. It does not decode the rules of network policies, which may be many.
func (c *Conn) readOurs(f nftables.TableFamily) (*Table, state, error) {
	t, err := c.readTable(f, TableName, (*Rule).decodeOurs)
	if err != nil || t == nil {
		return nil, state{}, err
	}
	s, err := c.states(f)
	if err != nil {
		return nil, state{}, err
	}
	s[0].sets, err = c.setNames(f)
	return t, s[0], err
}

// stops returns the reasons why the whole table does not work.
func (t *Table) stops(s state) (diffs []string) {
	if t.Dormant {
		diffs = append(diffs, fmt.Sprintf("%s is dormant, so none of its rules works", t))
	}
	if !s.present {
		diffs = append(diffs, fmt.Sprintf("%s has lost its schema number, so every ADD fails", t))
	}
	return diffs
}

// ours reports whether a table without a schema number is ours. It is ours if it has the sets
// of every schema and no set that this program does not know.
func ours(sets []string) bool {
	known := 0
	for _, name := range sets {
		spec, ok := specOf(name)
		switch {
		case name == SetSchema: // exists, but has lost its element
		case OfPolicies(name), ofMesh(name), ofRanges(name):
		case !ok:
			return false
		case spec.name == SetPorts4 || spec.name == SetOwners || spec.name == SetSpoofAllowed || spec.name == SetSpoofChecked:
			known++
		}
	}
	return known == 2
}

// compare describes what differs from the layout.
func (t *Table) compare(s state) (diffs []string) {
	l := layoutOf(t.Family).withFastPath(s.sets).withSources(s.sets)
	for _, set := range l.sets {
		if set != SetSchema && !slices.Contains(s.sets, set) {
			diffs = append(diffs, fmt.Sprintf("set %s of %s is missing", set, t))
		}
	}
	w := new(wanted)
	for _, want := range l.chains {
		diffs = append(diffs, t.compareChain(want, w)...)
	}
	for _, ch := range t.foreign(l) {
		diffs = append(diffs, fmt.Sprintf("chain %s of %s is not ours", ch, t))
	}
	if t.Family != nftables.TableFamilyINet {
		return diffs
	}
	if len(t.notConditions()) > 0 {
		diffs = append(diffs, fmt.Sprintf("chain %s of %s has rules that are not ours", chainConditional, t))
	}
	for _, name := range demandChains() {
		diffs = append(diffs, wrongRules(name, t.Rules[name], demanded(s.sets))...)
	}
	return diffs
}

// placed names a chain of a table in texts. Most chains are right, so most names are never formatted.
type placed struct {
	chain string
	t     *Table
}

// String names the chain and the table.
func (p placed) String() string { return fmt.Sprintf("chain %s of %s", p.chain, p.t) }

// compareChain compares a chain and its rules with the layout.
func (t *Table) compareChain(want chainSpec, w *wanted) (diffs []string) {
	name, have := placed{want.name, t}, t.chain(want.name)
	switch {
	case have == nil:
		return []string{fmt.Sprintf("%s is missing", name)}
	case !want.at(have):
		return []string{fmt.Sprintf("%s is not at its hook", name)}
	case have.Drops:
		diffs = append(diffs, fmt.Sprintf("%s drops by policy", name))
	}
	rules := t.Rules[want.name]
	switch {
	case want.keep:
		return diffs
	case len(rules) != len(want.rules):
		return append(diffs, fmt.Sprintf("%s has %d rules, not %d", name, len(rules), len(want.rules)))
	}
	for i, r := range want.rules {
		if !w.is(byte(t.Family), rules[i].Exprs, r.exprs) {
			diffs = append(diffs, fmt.Sprintf("rule %d in %s was changed", i+1, name))
		}
	}
	return diffs
}

// at reports whether a chain has the wanted type, hook and priority.
func (s chainSpec) at(have *Chain) bool {
	if s.hook == nil || !have.Base {
		return (s.hook != nil) == have.Base
	}
	return have.Type == string(s.typ) && have.Hook == *s.hook && have.Prio == int32(s.prio)
}

// foreign returns the base chains that neither the layout nor a network policy nor a tunnel has. Other unknown chains do not
// matter: no rule calls them, or compare finds the rule that does.
func (t *Table) foreign(l layout) (names []string) {
	for _, ch := range t.Chains {
		if ch.Base && !OfPolicies(ch.Name) && !ofMesh(ch.Name) && !slices.ContainsFunc(l.chains, func(s chainSpec) bool { return s.name == ch.Name }) {
			names = append(names, ch.Name)
		}
	}
	return names
}

// notConditions returns the rules in the chain of conditions that are not jumps to a network's
// conditions.
func (t *Table) notConditions() []Rule {
	return slices.DeleteFunc(slices.Clone(t.Rules[chainConditional]), func(r Rule) bool {
		_, to, ok := r.Verdict()
		return ok && len(r.Exprs) == 1 && strings.HasPrefix(to, chainOfConditions)
	})
}

// states reads the schema numbers of our tables.
func (c *Conn) states(families ...nftables.TableFamily) ([]state, error) {
	var what []query
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
