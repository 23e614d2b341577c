// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lightjson

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/order"
)

// Marshal does what json.Marshal does.
func Marshal(v any) ([]byte, error) {
	e := encoder{html: true}
	if e.value(reflect.ValueOf(v)) {
		return e.out, nil
	}
	return json.Marshal(v)
}

// MarshalIndent does what json.MarshalIndent does, but does not escape <, > and &.
func MarshalIndent(v any, prefix, indent string) ([]byte, error) {
	var out bytes.Buffer
	e := encoder{}
	if e.value(reflect.ValueOf(v)) {
		err := json.Indent(&out, e.out, prefix, indent)
		return out.Bytes(), err
	}
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent(prefix, indent)
	err := enc.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// deepest limits how deep values may be in each other: a value may contain itself.
const deepest = 100

// encoder appends values. Its functions return false if a value is not a common one.
type encoder struct {
	out   []byte
	html  bool // escape <, > and &
	depth int
}

func (e *encoder) value(v reflect.Value) bool {
	if e.depth++; e.depth > deepest || !v.IsValid() {
		return false
	}
	defer func() { e.depth-- }()
	if itself, ok := e.byItself(v); itself {
		return ok
	}
	return e.byKind(v)
}

// byKind appends a value whose type has no MarshalJSON or MarshalText.
func (e *encoder) byKind(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		return e.object(v)
	case reflect.String:
		return isText(v.Type()) && e.text(v.String())
	case reflect.Bool:
		e.out = strconv.AppendBool(e.out, v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.out = strconv.AppendInt(e.out, v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		e.out = strconv.AppendUint(e.out, v.Uint(), 10)
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		return e.reference(v)
	default:
		return false
	}
	return true
}

// reference appends what may be nil.
func (e *encoder) reference(v reflect.Value) bool {
	switch {
	case v.IsNil():
		e.out = append(e.out, "null"...)
		return true
	case v.Kind() == reflect.Slice:
		return e.list(v)
	case v.Kind() == reflect.Map:
		return e.dictionary(v)
	}
	return e.value(v.Elem())
}

// text appends a string.
func (e *encoder) text(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || e.html && isHTML(c) {
			data, err := json.Marshal(s)
			e.out = append(e.out, data...)
			return e.html && err == nil
		}
	}
	e.out = append(append(append(e.out, '"'), s...), '"')
	return true
}

func isHTML(c byte) bool { return c == '<' || c == '>' || c == '&' }

func (e *encoder) list(v reflect.Value) bool {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return false
	}
	e.out = append(e.out, '[')
	for i := range v.Len() {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if !e.value(v.Index(i)) {
			return false
		}
	}
	e.out = append(e.out, ']')
	return true
}

func (e *encoder) dictionary(v reflect.Value) bool {
	if v.Type().Key() != reflect.TypeFor[string]() {
		return false
	}
	keys := v.MapKeys()
	order.By(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	e.out = append(e.out, '{')
	for i, k := range keys {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if !e.text(k.String()) {
			return false
		}
		e.out = append(e.out, ':')
		if !e.value(v.MapIndex(k)) {
			return false
		}
	}
	e.out = append(e.out, '}')
	return true
}

func (e *encoder) object(v reflect.Value) bool {
	e.out = append(e.out, '{')
	for i, m := range membersOf(v.Type()) {
		switch f := v.Field(i); {
		case m.rare, m.quoted, m.embedded, m.omitZero && f.Kind() == reflect.Interface:
			return false
		case m.name == "", m.omitEmpty && isEmpty(f), m.omitZero && isZero(f):
		case !e.member(m.name, f):
			return false
		}
	}
	e.out = append(e.out, '}')
	return true
}

func (e *encoder) member(name string, v reflect.Value) bool {
	if e.out[len(e.out)-1] != '{' {
		e.out = append(e.out, ',')
	}
	if !e.text(name) {
		return false
	}
	e.out = append(e.out, ':')
	return e.value(v)
}
