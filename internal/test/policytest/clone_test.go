// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"reflect"
	"testing"
)

// TestCloneSharesNothing: a change of a clone changes nothing of the cluster.
func TestCloneSharesNothing(t *testing.T) {
	for seed := range uint64(50) {
		g := NewGenerator(seed, Small)
		clone := g.Clone()
		if !reflect.DeepEqual(clone, g.Cluster) {
			t.Fatalf("seed %d: the clone is another cluster", seed)
		}
		own := make(map[uintptr]reflect.Type)
		eachReference(reflect.ValueOf(g.Cluster), func(v reflect.Value) { own[v.Pointer()] = v.Type() })
		eachReference(reflect.ValueOf(clone), func(v reflect.Value) {
			if at := own[v.Pointer()]; at != nil {
				t.Errorf("seed %d: the clone shares a %s", seed, at)
			}
		})
	}
}

// eachReference calls f for all slices, maps and pointers below a value. Empty slices refer to nothing.
func eachReference(v reflect.Value, f func(reflect.Value)) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				eachReference(v.Field(i), f)
			}
		}
	case v.Kind() == reflect.Slice && v.Len() > 0:
		f(v)
		for i := range v.Len() {
			eachReference(v.Index(i), f)
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		f(v)
		eachReference(v.Elem(), f)
	case v.Kind() == reflect.Map && !v.IsNil():
		f(v)
	}
}
