// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"slices"
)

// New attachments have no ranges. Ranges serve attachments of schema 1, and containers
// whose network an agent of many hosts masquerades because an earlier release configured it
// (mesh.Subnet). This file, nft.Masquerade, the interval sets and record.Others can go when
// no such attachment and no such Docker network is left to upgrade from.

// Network-level sets hold ranges, and the kernel refuses a range that overlaps another
// (EEXIST, ENOTEMPTY). Networks may still be nested, so a set holds the widest ranges only:
// a range within another adds nothing.

// networks plans the operations on ranges: it lists each set concerned (they are as small
// as the number of networks), applies the operations and sends the difference.
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
		// Until it is gone, an expiring range conflicts with any range that overlaps it.
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

// widest drops ranges that lie within another one, and repetitions.
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

// Covers reports whether each part of o's range lies within e's. Elements of different sets
// cover nothing, nor do elements that are no ranges.
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
