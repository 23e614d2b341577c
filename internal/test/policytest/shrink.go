// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"cmp"
	"reflect"
	"slices"
)

// Shrink removes objects, rules and fields of a case as long as the engine's answer stays wrong.
// Nothing more can be removed from what it returns.
func Shrink(c Case, newEngine func() Engine) Case {
	return shrink(c, func(c Case) bool { return Ask(newEngine, c) != nil })
}

func shrink(c Case, fails func(Case) bool) Case {
	if !fails(c) {
		return c // another engine, in the same state, is right: chance, or time, decides
	}
	for {
		smaller, shrunk := shrinkOnce(c, fails)
		if !shrunk {
			return smaller
		}
		c = smaller
	}
}

// shrinkOnce tries to remove each thing once.
func shrinkOnce(c Case, fails func(Case) bool) (smaller Case, shrunk bool) {
	for n := 0; ; {
		try := c.clone()
		switch {
		case !remove(reflect.ValueOf(&try.States).Elem(), &countdown{n}):
			return c, shrunk
		case valid(try) && fails(try):
			c, shrunk = try, true
		default:
			n++
		}
	}
}

func (c Case) clone() Case {
	states := make([]Cluster, 0, len(c.States))
	for _, state := range c.States {
		states = append(states, state.Clone())
	}
	return Case{c.Probe, states}
}

// countdown reaches zero at the thing that is to be removed.
type countdown struct{ left int }

func (c *countdown) hit() bool {
	c.left--
	return c.left == -1
}

// remove removes the n-th element of all slices and maps, and n-th pointer, below a value. It
// returns false if there are fewer. Large things come before their parts.
func remove(v reflect.Value, n *countdown) bool {
	switch v.Kind() {
	case reflect.Slice:
		return removeElement(v, n)
	case reflect.Map:
		return removeKey(v, n)
	case reflect.Pointer:
		return removePointer(v, n)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() && remove(v.Field(i), n) {
				return true
			}
		}
	}
	return false
}

func removeElement(v reflect.Value, n *countdown) bool {
	for i := range v.Len() {
		if n.hit() {
			v.Set(reflect.AppendSlice(v.Slice(0, i), v.Slice(i+1, v.Len())))
			return true
		}
	}
	for i := range v.Len() {
		if remove(v.Index(i), n) {
			return true
		}
	}
	return false
}

func removeKey(v reflect.Value, n *countdown) bool {
	for _, key := range sortedKeys(v) {
		if n.hit() {
			v.SetMapIndex(key, reflect.Value{})
			return true
		}
	}
	return false
}

func removePointer(v reflect.Value, n *countdown) bool {
	if v.IsNil() {
		return false
	}
	if n.hit() {
		v.SetZero()
		return true
	}
	return remove(v.Elem(), n)
}

// sortedKeys returns the keys of a map in an order that does not change.
func sortedKeys(v reflect.Value) []reflect.Value {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
	return keys
}
