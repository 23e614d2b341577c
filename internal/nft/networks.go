// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"slices"
)

// The sets of networks hold ranges. The kernel refuses a range that overlaps another one
// (EEXIST, ENOTEMPTY). But the subnets of networks may be nested. So a set holds only the
// widest ranges; a range inside another adds nothing.

// networks plans the operations on ranges. networks lists each set that they change, applies
// the operations to the list, and sends the difference. A set is small: it grows with the
// number of networks only.
func (c *Conn) networks(p *plan, ops []op) error {
	for len(ops) > 0 {
		set := ops[0].el.Set
		have, err := c.List(set)
		if err != nil {
			return err
		}
		want := have
		var rest []op
		for _, o := range ops {
			switch {
			case o.el.Set != set:
				rest = append(rest, o)
			case o.remove:
				want = minus(want, []Element{o.el})
			default:
				want = append(want[:len(want):len(want)], o.el)
			}
		}
		want = widest(want)
		added, gone := minus(want, have), minus(have, want)
		p.add = append(p.add, added...)
		// An expiring range still conflicts with every range that overlaps it, until it is gone.
		if len(added) > 0 {
			p.delete = append(p.delete, gone...)
		} else {
			for _, e := range gone {
				c.remove(p, e)
			}
		}
		ops = rest
	}
	return nil
}

// minus returns the elements of a whose range is not in b.
func minus(a, b []Element) []Element {
	var out []Element
	for _, x := range a {
		if !slices.ContainsFunc(b, x.SameKey) {
			out = append(out, x)
		}
	}
	return out
}

// widest drops duplicates and ranges that lie inside another one.
func widest(list []Element) []Element {
	var out []Element
next:
	for i, x := range list {
		for j, y := range list {
			if i != j && y.Covers(x) && (!x.Covers(y) || j < i) {
				continue next
			}
		}
		out = append(out, x)
	}
	return out
}

// Covers reports whether each part of e's range contains the same part of o's range. Covers
// returns false for elements of different sets and for elements that are not ranges.
func (e Element) Covers(o Element) bool {
	if e.Set != o.Set || len(e.KeyEnd) == 0 {
		return false
	}
	spec, _ := specOf(e.Set)
	at := 0
	for _, f := range spec.key {
		end := at + f.size()
		if len(e.KeyEnd) < end || len(o.KeyEnd) < end || bytes.Compare(e.Key[at:end], o.Key[at:end]) > 0 ||
			bytes.Compare(o.KeyEnd[at:end], e.KeyEnd[at:end]) > 0 {
			return false
		}
		at += f.padded()
	}
	return true
}
