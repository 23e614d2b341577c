// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lightjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
)

// byItself appends a value by the method of its type, if it has one.
func (e *encoder) byItself(v reflect.Value) (itself, ok bool) {
	if v.Type().PkgPath() == "" && v.Kind() != reflect.Struct {
		return false, false
	}
	whole := v.Interface()
	if v.CanAddr() {
		whole = v.Addr().Interface()
	}
	switch m := whole.(type) {
	case json.Marshaler:
		data, err := m.MarshalJSON()
		return true, err == nil && e.compact(data)
	case encoding.TextMarshaler:
		data, err := m.MarshalText()
		return true, err == nil && e.text(string(data))
	}
	return false, false
}

// compact appends JSON without its space, unless encoding/json would write it with other escapes.
func (e *encoder) compact(data []byte) bool {
	if slices.ContainsFunc(data, func(c byte) bool { return c > '~' || isHTML(c) }) {
		return false
	}
	out := bytes.NewBuffer(e.out)
	err := json.Compact(out, data)
	e.out = out.Bytes()
	return err == nil
}

// isEmpty is the rule of omitempty.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// isZero is the rule of omitzero, except for interfaces: the method IsZero decides if there is one.
func isZero(v reflect.Value) bool {
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return true
	}
	if z, ok := v.Interface().(interface{ IsZero() bool }); ok {
		return z.IsZero()
	}
	at := reflect.New(v.Type())
	at.Elem().Set(v)
	if z, ok := at.Interface().(interface{ IsZero() bool }); ok {
		return z.IsZero()
	}
	return v.IsZero()
}
