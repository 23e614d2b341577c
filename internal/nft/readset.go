// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/patchbay-net/patchbay/internal/order"
)

// Member is an element of any program's set or map: the keys from Low to High, both
// inclusive, compared field by field, in the kernel's bytes. Verdict is nil where the set
// is no verdict map.
type Member struct {
	Low, High []byte
	Verdict   *expr.Verdict
}

// Members returns the elements of a set of any program's table, in order, read at the first
// call. The fields of a key are concatenated, each padded to words of four bytes. Members
// returns nil when the set has a catch-all element.
func (t *Table) Members(set string) ([]Member, error) {
	if members, ok := t.sets[set]; ok {
		return members, nil
	}
	members, err := t.readSet(set)
	if err != nil {
		return nil, fmt.Errorf("read set %s of %s: %w", set, t, err)
	}
	if t.sets == nil {
		t.sets = make(map[string][]Member)
	}
	t.sets[set] = members
	return members, nil
}

// readSet returns nil for a set with a catch-all element.
func (t *Table) readSet(set string) ([]Member, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	s, err := c.GetSetByName(&nftables.Table{Family: t.Family, Name: t.Name}, set)
	if err != nil {
		return nil, err
	}
	list, err := c.GetSetElements(s)
	forOthers := func(e nftables.SetElement) bool { return len(e.Key) == 0 }
	if err != nil || slices.ContainsFunc(list, forOthers) {
		return nil, err
	}
	several := func(e nftables.SetElement) bool { return e.KeyEnd != nil }
	if s.Interval && !s.Concatenation && !slices.ContainsFunc(list, several) {
		return ranges(list), nil
	}
	members := []Member{}
	for _, e := range list {
		high := e.KeyEnd
		if high == nil {
			high = e.Key
		}
		members = append(members, member(e, high))
	}
	return members, nil
}

func member(e nftables.SetElement, high []byte) Member {
	m := Member{Low: e.Key, High: high}
	if code, chain, ok := verdictIn(e.Val); ok {
		m.Verdict = &expr.Verdict{Kind: expr.VerdictKind(code), Chain: chain}
	}
	return m
}

// ranges makes pairs of the elements of an interval set: a start, and an element with the
// end flag behind the last key, or none for an interval without an end.
func ranges(list []nftables.SetElement) []Member {
	order.By(list, func(a, b nftables.SetElement) int {
		return cmp.Or(bytes.Compare(a.Key, b.Key), ended(a)-ended(b))
	})
	members := []Member{}
	for i, e := range list {
		switch {
		case e.IntervalEnd:
		case i+1 < len(list):
			members = append(members, member(e, before(list[i+1].Key)))
		default:
			members = append(members, member(e, bytes.Repeat([]byte{0xff}, len(e.Key))))
		}
	}
	return members
}

// ended sorts the end of an interval before the start of the next.
func ended(e nftables.SetElement) int {
	if e.IntervalEnd {
		return 0
	}
	return 1
}

// before is the key before another one.
func before(key []byte) []byte {
	out := bytes.Clone(key)
	for i := len(out) - 1; i >= 0; i-- {
		out[i]--
		if out[i] != 0xff {
			break
		}
	}
	return out
}
