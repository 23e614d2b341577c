// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package lightjson reads and writes JSON as encoding/json does, in less time for the first value of
// a type. A plugin's process meets each type once or twice. At the first value, encoding/json
// prepares for all fields of all types that the value may contain. This takes ten times as long as to
// read the value, and this package does without it.
//
// It handles only what is common in configurations, results and records. It leaves any other document
// and all errors to encoding/json, so results and errors are always the same.
package lightjson

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Unmarshal does what json.Unmarshal does.
func Unmarshal(data []byte, v any) error {
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.IsNil() || !json.Valid(data) {
		return json.Unmarshal(data, v)
	}
	to = to.Elem()
	before := reflect.New(to.Type()).Elem()
	before.Set(to)
	if d := (decoder{scanner{data: data}}); d.value(to) {
		return nil
	}
	to.Set(before)
	return json.Unmarshal(data, v)
}

// decoder decodes a valid document. Its functions return false if the document, or the type of the
// value, is not a common one. They change no memory but that of the value itself and new memory, so
// that Unmarshal can undo a change.
type decoder struct{ scanner }

// value decodes the next value.
func (d *decoder) value(to reflect.Value) bool {
	if itself, ok := d.byItself(to); itself {
		return ok
	}
	switch kind := to.Kind(); kind {
	case reflect.Struct:
		return d.object(to)
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return d.scalar(to)
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if !to.IsNil() {
			return false
		}
		if d.next() == 'n' {
			d.skip()
			return true
		}
		return d.allocate(to)
	}
	return to.IsZero() && json.Unmarshal(d.skip(), to.Addr().Interface()) == nil
}

// byItself calls the method by which a type decodes itself, if it has one. A type without a name has
// none, unless it is a struct that embeds another type.
func (d *decoder) byItself(to reflect.Value) (itself, ok bool) {
	if to.Type().PkgPath() == "" && to.Kind() != reflect.Struct {
		return false, false
	}
	switch u := to.Addr().Interface().(type) {
	case json.Unmarshaler:
		return true, d.next() != 'n' && u.UnmarshalJSON(d.skip()) == nil
	case encoding.TextUnmarshaler:
		text, ok := d.text()
		return true, ok && u.UnmarshalText([]byte(text)) == nil
	}
	return false, false
}

// allocate decodes a value that is not null into a nil pointer, slice or map.
func (d *decoder) allocate(to reflect.Value) bool {
	switch kind := to.Kind(); {
	case kind == reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		return d.value(to.Elem())
	case kind == reflect.Slice && d.data[d.at] == '[':
		return d.list(to)
	case kind == reflect.Map && d.data[d.at] == '{':
		return d.dictionary(to)
	}
	return false
}

func (d *decoder) list(to reflect.Value) bool {
	element := to.Type().Elem()
	if element.Kind() == reflect.Uint8 { // it may be base64
		return false
	}
	to.Set(reflect.MakeSlice(to.Type(), 0, 0))
	return d.each(']', func() bool {
		to.Set(reflect.Append(to, reflect.Zero(element)))
		return d.value(to.Index(to.Len() - 1))
	})
}

func (d *decoder) dictionary(to reflect.Value) bool {
	t := to.Type()
	if t.Key() != reflect.TypeFor[string]() {
		return false
	}
	to.Set(reflect.MakeMap(t))
	return d.members(func(key string) bool {
		value := reflect.New(t.Elem()).Elem()
		if !d.value(value) {
			return false
		}
		to.SetMapIndex(reflect.ValueOf(key), value)
		return true
	})
}

// members calls the function do with the key of each member of an object. The function reads the value.
func (d *decoder) members(do func(key string) bool) bool {
	return d.each('}', func() bool {
		key, ok := d.text()
		if !ok {
			return false
		}
		d.next()
		d.at++ // the colon
		return do(key)
	})
}

func (d *decoder) object(to reflect.Value) bool {
	if d.next() != '{' {
		return false
	}
	seen := make([]string, 0, 16)
	return d.members(func(key string) bool {
		if slices.Contains(seen, key) || !isASCII(key) {
			return false // encoding/json merges the values; it ignores case also of other letters
		}
		seen = append(seen, key)
		f, ok := field(to, key)
		if !f.IsValid() {
			d.skip()
			return ok
		}
		return d.value(f)
	})
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf })
}

// field returns the field of a struct that a key names. If there is none, it returns the zero Value.
// It returns false if only encoding/json knows.
func field(of reflect.Value, key string) (found reflect.Value, ok bool) {
	for i, m := range membersOf(of.Type()) {
		switch {
		case m.rare:
			return reflect.Value{}, false
		case m.name == key && m.name != "":
			if found.IsValid() || m.quoted {
				return reflect.Value{}, false
			}
			found = of.Field(i)
		case len(m.name) == len(key) && strings.EqualFold(m.name, key):
			return reflect.Value{}, false
		}
	}
	if found.IsValid() {
		return found, true
	}
	return embeddedField(of, key)
}

// embeddedField returns the field of an embedded struct.
func embeddedField(of reflect.Value, key string) (found reflect.Value, ok bool) {
	for i, m := range membersOf(of.Type()) {
		if !m.embedded {
			continue
		}
		f, ok := field(of.Field(i), key)
		if !ok || f.IsValid() && found.IsValid() {
			return reflect.Value{}, false
		}
		if f.IsValid() {
			found = f
		}
	}
	return found, true
}

// member is how a field of a struct takes part in JSON.
type member struct {
	name                        string // "": not at all
	quoted, omitEmpty, omitZero bool
	embedded                    bool // its own fields do
	rare                        bool // only encoding/json knows
}

// membersByType has the members of each struct type that was met, in the order of its fields: []member by
// reflect.Type. To read a field's tag takes longer than to compare keys.
var membersByType sync.Map

func membersOf(t reflect.Type) []member {
	if m, ok := membersByType.Load(t); ok {
		return m.([]member)
	}
	members := make([]member, t.NumField())
	for i := range members {
		members[i] = memberOf(t.Field(i))
	}
	membersByType.Store(t, members)
	return members
}

func memberOf(f reflect.StructField) (m member) {
	tag := f.Tag.Get("json")
	name, options, _ := strings.Cut(tag, ",")
	switch {
	case f.Anonymous && (name != "" || f.Type.Kind() != reflect.Struct):
		return member{rare: true}
	case f.Anonymous:
		return member{embedded: true}
	case !f.IsExported() || tag == "-":
		return member{}
	}
	if m.name = name; name == "" {
		m.name = f.Name
	}
	for options != "" {
		var o string
		o, options, _ = strings.Cut(options, ",")
		m.quoted = m.quoted || o == "string"
		m.omitEmpty = m.omitEmpty || o == "omitempty"
		m.omitZero = m.omitZero || o == "omitzero"
	}
	return m
}
