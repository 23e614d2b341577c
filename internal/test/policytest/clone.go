// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"maps"
	"reflect"
)

// Clone returns a copy that shares nothing with the cluster.
func (c Cluster) Clone() Cluster {
	unshare(reflect.ValueOf(&c).Elem())
	return c
}

// unshare gives a value copies of its own of all slices, maps and pointers below it.
func unshare(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				unshare(f)
			}
		}
	case reflect.Slice:
		own := v
		if !v.IsNil() {
			own = reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(own, v)
		}
		for i := range own.Len() {
			unshare(own.Index(i))
		}
		v.Set(own)
	case reflect.Map: // labels or annotations
		v.Set(reflect.ValueOf(maps.Clone(v.Interface().(map[string]string))))
	case reflect.Pointer:
		if !v.IsNil() {
			own := reflect.New(v.Type().Elem())
			own.Elem().Set(v.Elem())
			unshare(own.Elem())
			v.Set(own)
		}
	}
}
