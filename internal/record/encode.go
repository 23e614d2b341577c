// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// encode does the work of json.Marshal for a record or a fact, whose fields are mostly empty. At
// the first value of a type, json.Marshal prepares for all types that the value may contain. For
// the one record of a process, that took 0.13 ms. encode looks only at fields that are set and
// takes 0.02 ms.
func encode(v any) ([]byte, error) { return appendValue(nil, reflect.ValueOf(v)) }

func appendValue(b []byte, v reflect.Value) ([]byte, error) {
	whole := v.Interface()
	_, text := whole.(encoding.TextMarshaler)
	_, own := whole.(json.Marshaler)
	switch kind := v.Kind(); {
	case text || own:
	case kind == reflect.Pointer && !v.IsNil():
		return appendValue(b, v.Elem())
	case kind == reflect.Struct:
		return appendStruct(b, v)
	case kind == reflect.Slice && !v.IsNil():
		return appendList(b, v)
	}
	data, err := json.Marshal(whole)
	return append(b, data...), err
}

func appendStruct(b []byte, v reflect.Value) (_ []byte, err error) {
	b = append(b, '{')
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, option, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || omits(option, v.Field(i)) {
			continue
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), `":`...)
		if b, err = appendValue(b, v.Field(i)); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// omits reports whether encode leaves out a field with this option (omitempty, omitzero).
func omits(option string, v reflect.Value) bool {
	switch kind := v.Kind(); {
	case option == "omitempty" && kind == reflect.Struct:
		return false
	case option == "omitempty" && (kind == reflect.Slice || kind == reflect.Map):
		return v.Len() == 0
	}
	return option != "" && v.IsZero()
}

func appendList(b []byte, v reflect.Value) (_ []byte, err error) {
	b = append(b, '[')
	for i := range v.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendValue(b, v.Index(i)); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}
