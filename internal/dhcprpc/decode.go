// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcprpc

import (
	"bytes"
	"errors"
	"fmt"
)

// gobFields is a decoded struct: a map from field names to values. gobFields does not contain fields
// whose value is zero.
type gobFields map[string]any

// get returns a field, or the zero value if the field is missing.
func get[T any](r gobFields, name string) T {
	v, _ := r[name].(T)
	return v
}

func (r gobFields) int(name string) int { return int(get[int64](r, name)) }

// intPtr returns a pointer to a number, or nil if the field was not sent. In gob, a pointer to
// zero looks like a missing field.
func (r gobFields) intPtr(name string) *int {
	if _, ok := r[name].(int64); !ok {
		return nil
	}
	n := r.int(name)
	return &n
}

// list returns a field that holds a list.
func list[T any](r gobFields, name string) (out []T) {
	for _, v := range get[[]any](r, name) {
		if e, ok := v.(T); ok {
			out = append(out, e)
		}
	}
	return out
}

// gobType is a struct or list type that the other side has defined.
type gobType struct {
	fields []field
	elem   int // element type of a list
}

// gobDecoder reads a stream that defines its own types.
type gobDecoder struct {
	r     source
	types map[int]gobType
}

func newDecoder(r source) *gobDecoder {
	common := field{"CommonType", gobCommonType}
	return &gobDecoder{r: r, types: map[int]gobType{
		gobWireType:   {fields: []field{{"ArrayT", 0}, {"SliceT", gobSliceType}, {"StructT", gobStructType}}},
		gobSliceType:  {fields: []field{common, {"Elem", gobInt}}},
		gobCommonType: {fields: []field{{"Name", gobString}, {"Id", gobInt}}},
		gobStructType: {fields: []field{common, {"Field", gobFieldList}}},
		gobFieldType:  {fields: []field{{"Name", gobString}, {"Id", gobInt}}},
		gobFieldList:  {elem: gobFieldType},
	}}
}

// next returns the next struct of the stream. On the way it stores the types that the stream
// defines.
func (d *gobDecoder) next() (gobFields, error) {
	for {
		m, err := readMessage(d.r)
		if err != nil {
			return nil, err
		}
		r, err := d.message(m)
		if err != nil { // within a message, an io.EOF is not the end of the stream
			return nil, fmt.Errorf("malformed gob stream: %s", err.Error())
		}
		if r != nil {
			return r, nil
		}
	}
}

// message reads a struct or a type definition. For a type definition, the returned fields are nil.
func (d *gobDecoder) message(m *bytes.Reader) (gobFields, error) {
	id, err := readInt(m)
	if err != nil {
		return nil, err
	}
	if id < 0 {
		return nil, d.learn(int(-id), m)
	}
	v, err := d.value(m, int(id), 0)
	if err != nil {
		return nil, err
	}
	r, ok := v.(gobFields)
	if !ok {
		return nil, errors.New("a struct was expected")
	}
	return r, nil
}

// maxTypes limits how many types a stream may define. A result needs about a dozen.
const maxTypes = 200

func (d *gobDecoder) learn(id int, m *bytes.Reader) error {
	v, err := d.value(m, gobWireType, 0)
	if err != nil {
		return err
	}
	if len(d.types) > maxTypes || id < 64 {
		return fmt.Errorf("type %d", id)
	}
	w, _ := v.(gobFields)
	switch st, slice := get[gobFields](w, "StructT"), get[gobFields](w, "SliceT"); {
	case st != nil:
		t := gobType{fields: []field{}}
		for _, f := range list[gobFields](st, "Field") {
			t.fields = append(t.fields, field{get[string](f, "Name"), f.int("Id")})
		}
		d.types[id] = t
	case slice != nil:
		d.types[id] = gobType{elem: slice.int("Elem")}
	default:
		return fmt.Errorf("type %d is neither struct nor list", id)
	}
	return nil
}

// deepest limits how deep values may be nested. A result has four levels.
const deepest = 16

func (d *gobDecoder) value(m *bytes.Reader, id, depth int) (any, error) {
	switch id {
	case gobBool:
		v, err := readUint(m)
		return v != 0, err
	case gobInt:
		return readInt(m)
	case gobUint:
		return readUint(m)
	case gobBytes:
		return readBytes(m)
	case gobString:
		b, err := readBytes(m)
		return string(b), err
	}
	t, ok := d.types[id]
	switch {
	case !ok || depth > deepest:
		return nil, fmt.Errorf("a value of type %d", id)
	case t.fields != nil:
		return d.fields(m, t.fields, depth)
	}
	return d.list(m, t.elem, depth)
}

// fields reads a struct. In the stream each field begins with its distance from the field before.
func (d *gobDecoder) fields(m *bytes.Reader, fields []field, depth int) (gobFields, error) {
	out := gobFields{}
	for at := -1; ; {
		delta, err := readUint(m)
		if err != nil || delta == 0 {
			return out, err
		}
		if delta > uint64(len(fields)-1-at) {
			return nil, errors.New("a field beyond the last")
		}
		at += int(delta)
		if out[fields[at].name], err = d.value(m, fields[at].typ, depth+1); err != nil {
			return nil, err
		}
	}
}

func (d *gobDecoder) list(m *bytes.Reader, elem, depth int) ([]any, error) {
	n, err := readUint(m)
	if err != nil {
		return nil, err
	}
	if n > uint64(m.Len()) { // every element has at least one byte
		return nil, fmt.Errorf("a list of %d", n)
	}
	out := make([]any, 0, n)
	for range n {
		v, err := d.value(m, elem, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}
