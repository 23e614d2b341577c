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
	elements Table
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
	return &table{elements: make(Table), affinity: make(map[client]netip.AddrPort)}
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

func (t *table) inside(a netip.Addr) bool { return t.elements.within(Pods, a) || t.local(a) }

// walk follows the rules of the table's chains.
func (t *table) walk(k Packet) Verdict {
	k.Remembered = t.affinity[client{k.From, k.To, k.Protocol}]
	r := t.elements.Judge(k, t.local)
	if r.Cause == Torn {
		panic(fmt.Sprintf("%s lacks slots that the last rule of its class may draw", r.Frontend))
	}
	return r.Verdict
}
