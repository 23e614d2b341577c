// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// table is what the kernel has: elements with their endpoints, and what clients remember.
type table struct {
	elements map[Element]netip.AddrPort
	affinity map[client]netip.AddrPort
	local    func(netip.Addr) bool // the kernel's "fib saddr type local", which needs no set
}

func (t *table) clone() *table {
	return &table{elements: maps.Clone(t.elements), affinity: maps.Clone(t.affinity), local: t.local}
}

// client is a client of a frontend, with the address to which it connects.
type client struct {
	from  netip.Addr
	to    netip.AddrPort
	proto l4.Protocol
}

func newTable() *table {
	return &table{elements: make(map[Element]netip.AddrPort), affinity: make(map[client]netip.AddrPort)}
}

// apply does what the agent does with a change, and fails as the kernel would. isLocal knows the node's addresses.
func (t *table) apply(c Change, isLocal func(netip.Addr) bool) error {
	t.local = isLocal
	for _, step := range c.Steps {
		if err := t.step(step); err != nil {
			return err
		}
	}
	for k, to := range t.affinity {
		if contain(c.Moved, k.from) || slices.ContainsFunc(c.Forget, func(m Memory) bool { return t.forgets(m, k, to) }) {
			delete(t.affinity, k)
		}
	}
	return nil
}

// step is one transaction.
func (t *table) step(s Step) error {
	for _, e := range s.Remove {
		if to, ok := t.elements[e.key()]; !ok || to != e.Endpoint {
			return fmt.Errorf("remove %s: the table has %s, %v", e, to, ok)
		}
		delete(t.elements, e.key())
	}
	for _, e := range s.Add {
		if to, ok := t.elements[e.key()]; ok {
			return fmt.Errorf("add %s: the table has %s", e, to)
		}
		t.elements[e.key()] = e.Endpoint
	}
	return nil
}

func (t *table) forgets(m Memory, k client, to netip.AddrPort) bool {
	f := Frontend{k.to.Addr(), k.proto, k.to.Port()}
	if m.Frontend.Addr.IsUnspecified() {
		f.Addr = anyAddress(f.Addr.Is6())
	}
	return m.Endpoint == to && m.Frontend == f && (m.Inside && t.inside(k.from) || m.Outside && !t.inside(k.from))
}

func (t *table) has(e Element) bool { _, ok := t.elements[e]; return ok }

func (t *table) inRange(set Set, a netip.Addr) bool {
	for e := range t.elements {
		if e.Set == set && e.Range.Contains(a) {
			return true
		}
	}
	return false
}

func (t *table) inside(a netip.Addr) bool { return t.inRange(Pods, a) || t.local(a) }

// walk follows the rules of the table's chains, as the design has them.
func (t *table) walk(k Packet) Verdict {
	f := Frontend{k.To.Addr(), k.Protocol, k.To.Port()}
	if t.has(address(VIP, f.Addr)) {
		if v, done := t.frontend(f, k); done {
			return v
		}
		if t.has(address(ClusterIP, f.Addr)) {
			return Verdict{Action: Rejected}
		}
	}
	if t.has(address(NodeAddress, f.Addr)) {
		np := Frontend{anyAddress(f.Addr.Is6()), f.Protocol, f.Port}
		if v, done := t.frontend(np, k); done {
			return v
		}
	}
	if t.inRange(CIDR, k.To.Addr()) && !t.local(k.To.Addr()) {
		return Verdict{Action: Dropped}
	}
	return Verdict{}
}

func (t *table) frontend(f Frontend, k Packet) (v Verdict, done bool) {
	if t.has(f.in(Ranged, 0)) && !t.allowed(f, k.From) {
		return Verdict{Action: Dropped}, true
	}
	for e := range t.elements {
		if e.Set == Sticky && e.Frontend == f {
			v.Affinity = e.Size
		}
	}
	if to, ok := t.affinity[client{k.From, k.To, k.Protocol}]; ok && v.Affinity > 0 {
		return t.translate(f, k, v.Affinity, to), true
	}
	if t.has(f.in(Outside, 0)) && !t.inside(k.From) {
		if to := t.draw(f, OutsideOne, OutsideClass, OutsideMany); len(to) > 0 {
			return t.translate(f, k, v.Affinity, to...), true
		}
		return Verdict{Action: Dropped}, true
	}
	switch to := t.draw(f, One, Class, Many); {
	case len(to) > 0:
		return t.translate(f, k, v.Affinity, to...), true
	case t.has(f.in(Drop, 0)):
		return Verdict{Action: Dropped}, true
	case t.has(f.in(Reject, 0)):
		return Verdict{Action: Rejected}, true
	}
	return Verdict{}, false
}

// draw returns the endpoints that the rules of a class can draw.
func (t *table) draw(f Frontend, one, class, many Set) (list []netip.AddrPort) {
	if to, ok := t.elements[f.in(one, 0)]; ok {
		return []netip.AddrPort{to}
	}
	for e := range t.elements {
		if e.Set != class || e.Frontend != f {
			continue
		}
		for slot := range e.Size {
			e := f.in(many, e.Size)
			e.Slot = uint16(slot)
			if to, ok := t.elements[e]; ok {
				list = append(list, to)
			} else if slot <= e.Size/2 {
				panic(fmt.Sprintf("%s is missing, which the class's last rule may draw", e))
			}
		}
	}
	return list
}

func (t *table) allowed(f Frontend, from netip.Addr) bool {
	for length := range 129 {
		r, err := from.Prefix(length)
		if e := f.in(Allowed, uint32(length)); err == nil {
			if e.Range = r; t.has(e) {
				return true
			}
		}
	}
	return false
}

// translate is what the postrouting chain says of each endpoint.
func (t *table) translate(f Frontend, k Packet, affinity uint32, list ...netip.AddrPort) Verdict {
	v := Verdict{Action: Translated, Affinity: affinity}
	for _, to := range list {
		hides := k.From == to.Addr() && t.has(address(Hairpin, to.Addr())) ||
			t.has(f.in(Masquerade, 0)) ||
			t.has(f.in(Outside, 0)) && t.local(k.From) && !t.inRange(Pods, k.From) ||
			t.has(address(ClusterIP, k.To.Addr())) && !t.inRange(Keeping, k.From)
		v.To = append(v.To, Destination{to, hides})
	}
	return v
}
