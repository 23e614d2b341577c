// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"encoding/binary"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/internal/services"
)

// mostBytes is how large the elements of a transaction may be, unless one step has more.
const mostBytes = 300_000

// setID is what the name of a set says. To make the name for each element would take longer than to write the element.
type setID struct {
	set            services.Set
	ipv6, nodePort bool
	size           uint32
}

func idOf(e *services.Element) setID { return setID{e.Set, e.IPv6, e.NodePort, e.Size} }

// steps sends steps in transactions.
func (e *Enforcer) steps(ctx context.Context, list []services.Step) error {
	t := e.transaction()
	for _, s := range list {
		t.step(s)
		if t.bulk.Size() > mostBytes {
			if err := t.commit(ctx); err != nil {
				return err
			}
			t = e.transaction()
		}
	}
	return t.commit(ctx)
}

// transaction collects elements.
type transaction struct {
	*Enforcer
	bulk    *nft.Bulk
	sets    [2]map[setID]*nft.SetBulk // removals and additions
	missing []string                  // sets that the layout lacks
	scratch []byte
}

func (e *Enforcer) transaction() *transaction {
	return &transaction{Enforcer: e, bulk: nft.NewServicesBulk(), sets: [2]map[setID]*nft.SetBulk{make(map[setID]*nft.SetBulk), make(map[setID]*nft.SetBulk)}}
}

// commit sends what was collected. Sets that are missing are made.
func (t *transaction) commit(ctx context.Context) error {
	if t.bulk.Size() == 0 {
		return nil
	}
	grown, err := t.layout, error(nil)
	if len(t.missing) > 0 {
		grown, err = t.layout.With(t.missing...)
	}
	if err != nil {
		return err
	}
	if err := t.transact(ctx, &nft.ServicesWork{Have: t.layout, Grow: grown, Elements: t.bulk}); err != nil {
		return err
	}
	t.layout = grown
	return nil
}

func (t *transaction) step(s services.Step) {
	for i := range s.Remove {
		t.element(&s.Remove[i], 0)
	}
	for i := range s.Add {
		t.element(&s.Add[i], 1)
	}
}

// element collects one element; add is 1, or 0 if it is removed.
func (t *transaction) element(e *services.Element, add int) {
	t.scratch = eachEncoded(t.scratch, e, add == 1, t.in(e, add).Element)
}

// in returns where the elements of a set are collected.
func (t *transaction) in(e *services.Element, add int) *nft.SetBulk {
	id := idOf(e)
	if to := t.sets[add][id]; to != nil {
		return to
	}
	name := e.Name()
	if !t.Enforcer.sets[id] {
		if t.Enforcer.sets[id] = true; !t.layout.Has(name) {
			t.missing = append(t.missing, name)
		}
	}
	to := t.bulk.Remove(name)
	if add == 1 {
		to = t.bulk.Add(name)
	}
	t.sets[add][id] = to
	return to
}

// eachEncoded calls do with the element in the kernel's bytes, which are in scratch, and returns the scratch for the next one. A range is two
// elements: its first address, and the first one after it. A range up to the highest address has no second one.
func eachEncoded(scratch []byte, e *services.Element, withData bool, do func(key, data []byte, end bool)) []byte {
	if ofRanges(e.Set) {
		do(e.Range.Masked().Addr().AsSlice(), nil, false)
		if next := prefix.Last(e.Range).Next(); next.IsValid() {
			do(next.AsSlice(), nil, true)
		}
		return scratch
	}
	b := appendKey(scratch[:0], e)
	n := len(b)
	if !withData || !e.Endpoint.IsValid() {
		do(b, nil, false)
		return b
	}
	b = appendPort(appendAddr(b, e.Endpoint.Addr()), e.Endpoint.Port())
	do(b[:n], b[n:], false)
	return b
}

// appendKey appends the key of an element that is no range, in the kernel's bytes.
func appendKey(b []byte, e *services.Element) []byte {
	f := &e.Frontend
	switch e.Set {
	case services.Hairpin:
		return appendAddr(appendAddr(b, f.Addr), f.Addr)
	case services.ClusterIP, services.VIP, services.NodeAddress:
		return appendAddr(b, f.Addr)
	}
	if !e.NodePort {
		b = appendAddr(b, f.Addr)
	}
	b = appendPort(append(b, byte(f.Protocol), 0, 0, 0), f.Port)
	switch e.Set {
	case services.Many, services.OutsideMany:
		return binary.NativeEndian.AppendUint32(b, uint32(e.Slot))
	case services.Allowed:
		return appendAddr(b, e.Range.Addr())
	}
	return b
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		four := a.As4()
		return append(b, four[:]...)
	}
	sixteen := a.As16()
	return append(b, sixteen[:]...)
}

func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}
