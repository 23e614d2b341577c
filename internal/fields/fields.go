// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package fields lists the keys of a plugin's configuration, with the comments of its source.
package fields

import (
	"cmp"
	"encoding"
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
)

// Field is one key of a configuration.
type Field struct {
	Key       string  `json:"key"`
	Type      string  `json:"type"`
	Default   string  `json:"default,omitempty"`
	Doc       string  `json:"doc,omitempty"`
	Reference string  `json:"reference,omitempty"` // how the reference plugin differs
	Fields    []Field `json:"fields,omitempty"`

	Name string `json:"-"` // the field's Go path in docs
}

// Of lists the keys that conf decodes. conf is a pointer to a struct; its present values are the
// defaults. docs has the comments on the fields, one line for each field. Tabs separate the four
// parts of a line: the field's Go path, what the field does, its default, and how the reference
// differs. If the line before has the same type, the path leaves the type out.
func Of(conf any, docs string) []Field {
	v := reflect.Indirect(reflect.ValueOf(conf))
	if v.Kind() != reflect.Struct {
		return nil
	}
	return reader(docs).fields(v, goName(v.Type(), ""), 0)
}

// Module begins the import paths of our packages. A Go path leaves it out to save space.
const Module = "github.com/patchbay-net/patchbay/"

// goName returns the path of a type in docs. A struct type without a name has the path of
// its field, which is at.
func goName(t reflect.Type, at string) string {
	if t.Name() == "" {
		return at
	}
	return strings.TrimPrefix(t.PkgPath(), Module) + "." + t.Name()
}

// deepest is how many levels of nested types are listed, because a type may contain itself.
const deepest = 6

// reader finds comments in docs.
type reader string

func (r reader) fields(v reflect.Value, at string, depth int) (out []Field) {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		key, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if key == "-" || !sf.IsExported() && !sf.Anonymous {
			continue
		}
		elem := structOf(v.Field(i))
		name := at + "." + sf.Name
		if sf.Anonymous && key == "" && elem.IsValid() {
			out = append(out, r.fields(elem, goName(elem.Type(), name), depth)...)
			continue
		}
		if key == "" {
			key = sf.Name
		}
		f := Field{Key: key, Type: typeWord(sf.Type), Name: name}
		f.Doc, f.Default, f.Reference = r.find(name)
		f.Default = cmp.Or(defaultOf(v.Field(i)), f.Default)
		if elem.IsValid() && depth < deepest {
			f.Fields = r.fields(elem, goName(elem.Type(), name), depth+1)
		}
		out = append(out, f)
	}
	return out
}

// structOf returns the struct inside a pointer, slice or map. If there is no struct, or if the
// type has its own UnmarshalJSON, the result is invalid.
func structOf(v reflect.Value) reflect.Value {
	t := v.Type()
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		if decodesItself(t) {
			return reflect.Value{}
		}
		t = t.Elem()
		v = reflect.Zero(t)
	}
	if t.Kind() != reflect.Struct || decodesItself(t) {
		return reflect.Value{}
	}
	return v
}

func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// typeWord describes a type as a user of JSON does, such as "string" or "address".
func typeWord(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[netip.Addr]():
		return "address"
	case reflect.TypeFor[netip.Prefix]():
		return "prefix"
	case reflect.TypeFor[json.RawMessage]():
		return "any"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeWord(t.Elem())
	case reflect.Slice, reflect.Array:
		return "list of " + typeWord(t.Elem())
	case reflect.Map:
		return "map of " + typeWord(t.Elem())
	case reflect.Struct:
		return "object"
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Interface:
		return "any"
	}
	return "integer"
}

// defaultOf formats the initial value of a field. It returns "" for a zero value.
func defaultOf(v reflect.Value) string {
	if v.IsZero() || v.Kind() == reflect.Struct {
		return ""
	}
	data, err := json.Marshal(v.Interface())
	if err != nil {
		return ""
	}
	return string(data)
}

// find returns the three parts of a field's comment.
func (r reader) find(name string) (doc, byDefault, reference string) {
	of := ""
	for line := range strings.Lines(string(r)) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		at := strings.LastIndexByte(parts[0], '.')
		if at > 0 {
			of = parts[0][:at]
		}
		if of+parts[0][at:] == name && len(parts) == 4 {
			return parts[1], parts[2], parts[3]
		}
	}
	return "", "", ""
}
