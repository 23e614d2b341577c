// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Fault is something in a table that no program makes, or that cannot work.
type Fault struct {
	Kind     FaultKind
	Frontend Frontend // or only an address
}

// FaultKind is what is wrong.
type FaultKind uint8

// These are the kinds.
const (
	MissingSlots  FaultKind = iota // a class lacks slots that its rules draw: some connections find no endpoint
	Undrawn                        // slots that no rule draws
	Ambiguous                      // several classes, or a class beside a single endpoint
	Undecided                      // affinity, sources or masquerade of a frontend that neither translates nor refuses
	Invisible                      // no rule looks for the frontend, because its address is in no set of addresses
	ClosedToAll                    // source ranges, none of which could be read
	OutsideCIDRs                   // a cluster IP in no ServiceCIDR of its family
	NoNodeAddress                  // node ports of a family, at no address
)

// Faults returns what is wrong in a whole table, sorted.
func (t Table) Faults() []Fault {
	found := make(map[Fault]bool)
	for f, elements := range t.frontends() {
		for _, kind := range t.faultsOf(f, elements) {
			found[Fault{kind, f}] = true
		}
	}
	for _, ipv6 := range []bool{false, true} {
		if t.hasSome(func(e Element) bool { return e.NodePort && e.IPv6 == ipv6 }) && !t.hasSome(func(e Element) bool { return e.Set == NodeAddress && e.IPv6 == ipv6 }) {
			found[Fault{NoNodeAddress, Frontend{Addr: anyAddress(ipv6)}}] = true
		}
	}
	for e := range t {
		if e.Set == ClusterIP && !t.within(CIDR, e.Frontend.Addr) {
			found[Fault{OutsideCIDRs, e.Frontend}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Frontend.Compare(b.Frontend))
	})
}

// frontends returns all frontends that have an element, with those elements.
func (t Table) frontends() map[Frontend][]Element {
	all := make(map[Frontend][]Element)
	for e := range t {
		if e.ofOneFrontend() {
			all[e.Frontend] = append(all[e.Frontend], e)
		}
	}
	return all
}

func (t Table) faultsOf(f Frontend, elements []Element) (kinds []FaultKind) {
	add := func(kind FaultKind, wrong bool) {
		if wrong {
			kinds = append(kinds, kind)
		}
	}
	inside, outside := t.drawn(f, One, Class, Many), t.drawn(f, OutsideOne, OutsideClass, OutsideMany)
	add(MissingSlots, inside.torn || outside.torn)
	add(Undrawn, inside.undrawn || outside.undrawn)
	add(Ambiguous, inside.ways > 1 || outside.ways > 1)
	add(Undecided, inside.ways+outside.ways == 0 && !t.has(f.in(Drop, 0)) && !t.has(f.in(Reject, 0)))
	add(Invisible, !f.Addr.IsUnspecified() && !t.has(address(VIP, f.Addr)))
	add(ClosedToAll, t.has(f.in(Ranged, 0)) && !slices.ContainsFunc(elements, func(e Element) bool { return e.Set == Allowed }))
	return kinds
}

// drawn is how the rules find the endpoints of one side.
type drawn struct {
	ways          int // single endpoints and classes
	torn, undrawn bool
}

func (t Table) drawn(f Frontend, one, class, many Set) (d drawn) {
	if t.has(f.in(one, 0)) {
		d.ways++
	}
	for size := uint32(2); size <= largestClass; size *= 2 {
		if !t.has(f.in(class, size)) {
			d.undrawn = d.undrawn || t.slots(f, many, size) > 0
			continue
		}
		d.ways++
		d.torn = d.torn || t.slots(f, many, size) <= int(size/2)
	}
	return d
}

// slots counts the slots up to the first that is missing.
func (t Table) slots(f Frontend, many Set, size uint32) int {
	for slot := range size {
		e := f.in(many, size)
		if e.Slot = uint16(slot); !t.has(e) {
			return int(slot)
		}
	}
	return int(size)
}

func (t Table) hasSome(is func(Element) bool) bool {
	for e := range t {
		if is(e) {
			return true
		}
	}
	return false
}

// Addresses returns the addresses of a set of addresses, sorted.
func (t Table) Addresses(set Set) (list []netip.Addr) {
	for e := range t {
		if e.Set == set {
			list = append(list, e.Frontend.Addr)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// Frontends returns the frontends that the table translates, drops or refuses, sorted.
func (t Table) Frontends() []Frontend {
	return slices.SortedFunc(maps.Keys(t.frontends()), Frontend.Compare)
}

// Pods reports whether the node's pods have an address, and whether the node knows any of its family.
func (t Table) Pods(a netip.Addr) (has, known bool) {
	return t.within(Pods, a), t.hasSome(func(e Element) bool { return e.Set == Pods && e.IPv6 == a.Is6() })
}
