// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import "slices"

func (d differ) prepare(o Object) { d.out.Prepare = append(d.out.Prepare, Change{Op: Add, Object: o}) }

func (d differ) clean(o Object) { d.out.Clean = append(d.out.Clean, Change{Op: Remove, Object: o}) }

func (d differ) change(op Op, o, was Object) {
	d.out.Switch = append(d.out.Switch, Change{op, o, was})
}

// merge walks through two sorted lists. It calls do with both of two objects that compare as
// equal, and else with nil for the one that is missing.
func merge[T any](before, after []T, by func(a, b T) int, do func(was, is *T)) {
	for len(before) > 0 || len(after) > 0 {
		side := 0
		switch {
		case len(before) == 0:
			side = 1
		case len(after) == 0:
			side = -1
		default:
			side = by(before[0], after[0])
		}
		switch {
		case side < 0:
			do(&before[0], nil)
			before = before[1:]
		case side > 0:
			do(nil, &after[0])
			after = after[1:]
		default:
			do(&before[0], &after[0])
			before, after = before[1:], after[1:]
		}
	}
}

// compare adds the changes of a list of objects to Switch.
func compare[T Object](d differ, before, after []T, by func(a, b T) int, equal func(a, b *T) bool) {
	merge(before, after, by, func(was, is *T) {
		switch {
		case was == nil:
			d.change(Add, *is, nil)
		case is == nil:
			d.change(Remove, *was, nil)
		case !equal(was, is):
			d.change(Replace, *is, *was)
		}
	})
}

func (c *Chain) equal(o *Chain) bool {
	return c.Tier == o.Tier && slices.EqualFunc(c.Rules, o.Rules, func(a, b Rule) bool {
		return a.Source == b.Source && a.Verdict == b.Verdict && a.Set == b.Set && a.RangeSet == b.RangeSet && slices.Equal(a.Ports, b.Ports)
	})
}

func (l *LocalPod) equal(o *LocalPod) bool {
	return slices.Equal(l.Addresses, o.Addresses) && l.Sides[0].equal(&o.Sides[0]) && l.Sides[1].equal(&o.Sides[1])
}

func (s *Side) equal(o *Side) bool {
	return s.Isolated == o.Isolated && s.Unknown == o.Unknown && slices.Equal(s.Chains, o.Chains)
}
