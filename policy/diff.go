// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Changes leads from one program to another. Each list is in the order in which to apply it:
//
//   - Prepare adds objects that affect no packet yet: sets, range sets and chains to which nothing
//     refers, and members of sets that no address has. It may be split into several transactions.
//   - Switch changes objects that affect packets. It must be one transaction. Before it every decision is
//     the old program's, and after it the new one's. So no packet meets a mixture, which could
//     allow or deny what neither program does. Within it, additions precede removals, except
//     that ranges of a set are removed first, because the kernel refuses ranges that overlap.
//   - Clean removes objects that affect no packet any more. It may be split, and may come later.
//
// The texts of identities and the problems are for people, so Diff ignores them.
type Changes struct{ Prepare, Switch, Clean []Change }

// Change adds, replaces or removes one object. Its type is one of NodeAddress, Address, SetName,
// Member, RangeSetName, Span, Chain and LocalPod. A replaced object has the same key as before.
type Change struct {
	Op     Op
	Object Object
	Was    Object // what Object replaces
}

// Op is what happens to an object.
type Op uint8

// These are the operations.
const (
	Add Op = iota
	Replace
	Remove
)

// Object is one object of a program. Its text is what Program.String prints for it.
type Object interface{ String() string }

// NodeAddress is an address of the node itself.
type NodeAddress struct{ Addr netip.Addr }

// SetName is a set without its members.
type SetName struct{ Name string }

// RangeSetName is a range set without its ranges.
type RangeSetName struct{ Name string }

// Member is one identity of a set.
type Member struct {
	Set    string
	Number Number
}

// Span is one range of a range set.
type Span struct {
	RangeSet string
	Range
}

// String returns "node 192.0.2.1".
func (n NodeAddress) String() string { return "node " + n.Addr.String() }

// String returns "set shop{app=web}".
func (s SetName) String() string { return "set " + s.Name }

// String returns "ranges 10.0.0.0/8".
func (b RangeSetName) String() string { return "ranges " + b.Name }

// String returns "member 7c3f21aa of set shop{app=web}".
func (m Member) String() string { return "member " + m.Number.String() + " of set " + m.Set }

// String returns "range 10.0.0.0-10.0.0.9 of ranges …".
func (s Span) String() string { return "range " + s.Range.String() + " of ranges " + s.RangeSet }

// String returns "+ address 10.1.0.5 7c3f21aa", with ~ for a replacement and - for a removal.
func (c Change) String() string {
	return [...]string{"+ ", "~ ", "- "}[c.Op] + strings.ReplaceAll(c.Object.String(), "\n", "\n  ")
}

// Empty reports whether both programs decide the same by the same objects.
func (c Changes) Empty() bool { return len(c.Prepare)+len(c.Switch)+len(c.Clean) == 0 }

// String prints the three lists.
func (c Changes) String() string {
	var b strings.Builder
	for i, list := range [][]Change{c.Prepare, c.Switch, c.Clean} {
		if len(list) > 0 {
			b.WriteString([...]string{"prepare", "switch", "clean"}[i] + "\n")
			section(&b, list)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Diff returns what leads from one program to another. An old program without anything is the
// zero Program.
func Diff(before, after *Program) (c Changes) {
	d := differ{before: numbersOf(before), after: numbersOf(after), out: &c}
	d.setsAndRanges(before, after)
	d.chains(before, after)
	d.packets(before, after)
	slices.SortStableFunc(c.Switch, func(a, b Change) int { return cmp.Compare(order(a), order(b)) })
	slices.SortStableFunc(c.Clean, func(a, b Change) int { return cmp.Compare(order(a), order(b)) })
	return c
}

// order is a change's place in its list: what is referred to before what refers to it, and
// removals in the opposite order after all additions.
func order(c Change) int {
	rank := 0
	switch c.Object.(type) {
	case Span:
		if c.Op == Remove {
			return -1
		}
	case SetName, RangeSetName:
		rank = 1
	case Member:
		rank = 2
	case Address:
		rank = 3
	case Chain:
		rank = 4
	case LocalPod:
		rank = 5
	}
	if c.Op == Remove {
		return 20 - rank
	}
	return rank
}

// differ collects changes. The two lists are the numbers that addresses have, sorted.
type differ struct {
	before, after []Number
	out           *Changes
}

func numbersOf(p *Program) []Number {
	numbers := make([]Number, len(p.Addresses))
	for i, a := range p.Addresses {
		numbers[i] = a.Identity
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// setsAndRanges compares both kinds of sets with their elements.
func (d differ) setsAndRanges(before, after *Program) {
	merge(before.Sets, after.Sets, func(a, b Set) int { return strings.Compare(a.Name, b.Name) }, func(was, is *Set) {
		switch {
		case was == nil:
			d.prepare(SetName{is.Name})
			d.members(is.Name, nil, is.Members, true)
		case is == nil:
			d.members(was.Name, was.Members, nil, true)
			d.clean(SetName{was.Name})
		default:
			d.members(is.Name, was.Members, is.Members, false)
		}
	})
	merge(before.RangeSets, after.RangeSets, func(a, b RangeSet) int { return strings.Compare(a.Name, b.Name) }, func(was, is *RangeSet) {
		switch {
		case was == nil:
			d.prepare(RangeSetName{is.Name})
			d.ranges(is.Name, nil, is.Ranges, true)
		case is == nil:
			d.ranges(was.Name, was.Ranges, nil, true)
			d.clean(RangeSetName{was.Name})
		default:
			d.ranges(is.Name, was.Ranges, is.Ranges, false)
		}
	})
}

// members compares the members of a set. loose means that only one of the programs has the set.
func (d differ) members(name string, before, after []Number, loose bool) {
	merge(before, after, func(a, b Number) int { return cmp.Compare(a, b) }, func(was, is *Number) {
		switch {
		case was == nil && (loose || !has(d.before, *is)):
			d.prepare(Member{name, *is})
		case was == nil:
			d.change(Add, Member{name, *is}, nil)
		case is == nil && (loose || !has(d.after, *was)):
			d.clean(Member{name, *was})
		case is == nil:
			d.change(Remove, Member{name, *was}, nil)
		}
	})
}

func has(numbers []Number, n Number) bool {
	_, ok := slices.BinarySearch(numbers, n)
	return ok
}

// ranges compares the ranges of a set, as members does.
func (d differ) ranges(name string, before, after []Range, loose bool) {
	by := func(a, b Range) int { return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last)) }
	merge(before, after, by, func(was, is *Range) {
		switch {
		case was == nil && loose:
			d.prepare(Span{name, *is})
		case was == nil:
			d.change(Add, Span{name, *is}, nil)
		case is == nil && loose:
			d.clean(Span{name, *was})
		case is == nil:
			d.change(Remove, Span{name, *was}, nil)
		}
	})
}

// chains compares chains.
func (d differ) chains(before, after *Program) {
	merge(before.Chains, after.Chains, func(a, b Chain) int { return strings.Compare(a.Name, b.Name) }, func(was, is *Chain) {
		switch {
		case was == nil:
			d.prepare(*is)
		case is == nil:
			d.clean(*was)
		case !was.equal(is):
			d.change(Replace, *is, *was)
		}
	})
}

// packets compares what packets meet first.
func (d differ) packets(before, after *Program) {
	merge(before.Node, after.Node, netip.Addr.Compare, func(was, is *netip.Addr) {
		switch {
		case was == nil:
			d.change(Add, NodeAddress{*is}, nil)
		case is == nil:
			d.change(Remove, NodeAddress{*was}, nil)
		}
	})
	compare(d, before.Addresses, after.Addresses, func(a, b Address) int { return a.Addr.Compare(b.Addr) },
		func(a, b *Address) bool { return *a == *b })
	compare(d, before.Pods, after.Pods, func(a, b LocalPod) int { return strings.Compare(a.Name, b.Name) }, (*LocalPod).equal)
}
