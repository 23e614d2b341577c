// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/order"
)

// plan leads from one state to another, in the order of its lists. prepare and clean change only
// what no packet can meet, so they may be split into several transactions. switchOver is one
// transaction: before it every decision is the old state's, and after it the new one's.
type plan struct {
	prepare, switchOver, clean []step

	touched touched
}

// touched is what the switch of a plan changes: chains that get other rules, and what each set loses and gets.
type touched struct {
	chains         map[string]bool
	removed, added map[string][]element
}

// step is a part of a transaction.
type step struct {
	what     string // for people
	messages int    // of netlink
	do       func(*nftables.Conn) error
}

// planOf compares two states. same, if it is not nil, reports whether a set surely has the same
// elements in both.
func planOf(before *state, after *wanted, same func(set string) bool) (p plan, err error) {
	p.touched = touched{make(map[string]bool), make(map[string][]element), make(map[string][]element)}
	for _, name := range missing(after.counters, before.counters) {
		p.prepare = append(p.prepare, addCounter(name))
	}
	if err := p.compareSets(before, after, same); err != nil {
		return p, err
	}
	p.compareChains(before, after)
	if before.version < after.version {
		p.prepare = append(p.prepare, markBase(before.version))
	}
	for _, name := range missing(before.sets, after.sets) {
		p.clean = append(p.clean, deleteSet(name))
	}
	for _, name := range missing(before.counters, after.counters) {
		p.clean = append(p.clean, deleteCounter(name))
	}
	return p, nil
}

// missing returns the names of a that b does not have, sorted.
func missing(a, b map[string]bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if !b[name] {
			names = append(names, name)
		}
	}
	return names
}

// compareSets adds new sets with their elements, and changes the elements of others. The elements
// of a map from pods to chains are what packets meet first, so they are always switched.
func (p *plan) compareSets(before *state, after *wanted, same func(string) bool) error {
	var removals, additions []step
	for _, name := range slices.Sorted(maps.Keys(after.sets)) {
		if before.sets[name] && (ofOthers(name) || same != nil && same(name)) {
			continue
		}
		if ofOthers(name) {
			p.prepare = append(p.prepare, after.addSet(name))
			continue
		}
		if !before.sets[name] && !isDispatch(name) {
			fill, err := after.addFilled(name)
			if err != nil {
				return err
			}
			p.prepare = append(p.prepare, fill)
			continue
		}
		removed, added, err := p.compareElements(name, before, after)
		if err != nil {
			return err
		}
		removals = append(removals, removeElements(name, removed)...)
		additions = append(additions, after.addElements(name, added)...)
	}
	p.switchOver = slices.Concat(removals, additions)
	return nil
}

// compareElements returns what a set loses and gets. It makes a map from pods to chains if there is
// none yet.
func (p *plan) compareElements(name string, before *state, after *wanted) (removed, added []element, err error) {
	var have []element
	if before.sets[name] {
		have, err = before.elements(name)
	} else {
		p.prepare = append(p.prepare, after.addSet(name))
	}
	if err != nil {
		return nil, nil, err
	}
	want, err := after.elements(name)
	removed, added = differences(have, want, element.compare)
	p.touched.removed[name], p.touched.added[name] = removed, added
	return removed, added, err
}

// differences returns what is only in the first and what is only in the second of two sorted lists.
func differences[T any](have, want []T, compare func(a, b T) int) (removed, added []T) {
	for len(have) > 0 && len(want) > 0 {
		switch c := compare(have[0], want[0]); {
		case c < 0:
			removed, have = append(removed, have[0]), have[1:]
		case c > 0:
			added, want = append(added, want[0]), want[1:]
		default:
			have, want = have[1:], want[1:]
		}
	}
	return append(removed, have...), append(added, want...)
}

// byDepth returns the names of the chains, each after those to which it jumps.
func (w *wanted) byDepth() []string {
	names := slices.Collect(maps.Keys(w.chains))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(depth(a)-depth(b), cmp.Compare(a, b)) })
	return names
}

// compareChains adds new chains, replaces the rules of changed ones, and removes others.
func (p *plan) compareChains(before *state, after *wanted) {
	for _, name := range after.byDepth() {
		lines := after.lines[name]
		switch {
		case !before.chains[name]:
			p.prepare = append(p.prepare, addChain(name, lines))
		case !before.same(name, lines):
			p.switchOver = append(p.switchOver, replaceChain(name, lines))
			p.touched.chains[name] = true
		}
	}
	removed := missing(before.chains, after.chains)
	order.Stable(removed, func(a, b string) int { return depth(b) - depth(a) })
	for _, name := range removed {
		p.clean = append(p.clean, deleteChain(name))
	}
}
