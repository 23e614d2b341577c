// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcprpc

import (
	"fmt"
	"io"
)

// record is a decoded struct: values by field name. Fields that are zero are
// not in it.
type record map[string]any

func (r record) text(name string) string   { s, _ := r[name].(string); return s }
func (r record) record(name string) record { v, _ := r[name].(record); return v }
func (r record) bytes(name string) []byte  { b, _ := r[name].([]byte); return b }
func (r record) int(name string) int       { i, _ := r[name].(int64); return int(i) }

// intPtr is a pointer to the number, or nil when it was not sent: gob cannot
// tell a pointer to zero from none.
func (r record) intPtr(name string) *int {
	if i, ok := r[name].(int64); ok {
		n := int(i)
		return &n
	}
	return nil
}

func (r record) records(name string) (out []record) {
	list, _ := r[name].([]any)
	for _, v := range list {
		if e, ok := v.(record); ok {
			out = append(out, e)
		}
	}
	return out
}

func (r record) texts(name string) (out []string) {
	list, _ := r[name].([]any)
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// gobType is a type that the other side has defined: a struct, or a list.
type gobType struct {
	fields []field
	elem   int // of a list
}

// gobDecoder reads a stream whose types the stream itself defines.
type gobDecoder struct {
	r     io.Reader
	types map[int]gobType
}

func newDecoder(r io.Reader) *gobDecoder {
	list := func(elem int) gobType { return gobType{elem: elem} }
	common := field{"CommonType", gobCommonType}
	return &gobDecoder{r: r, types: map[int]gobType{
		gobWireType: {fields: []field{
			{"ArrayT", gobArrayType}, {"SliceT", gobSliceType}, {"StructT", gobStructType}, {"MapT", gobMapType},
		}},
		gobArrayType:  {fields: []field{common, {"Elem", gobInt}, {"Len", gobInt}}},
		gobSliceType:  {fields: []field{common, {"Elem", gobInt}}},
		gobMapType:    {fields: []field{common, {"Key", gobInt}, {"Elem", gobInt}}},
		gobCommonType: {fields: []field{{"Name", gobString}, {"Id", gobInt}}},
		gobStructType: {fields: []field{common, {"Field", gobFieldList}}},
		gobFieldType:  {fields: []field{{"Name", gobString}, {"Id", gobInt}}},
		gobFieldList:  list(gobFieldType),
	}}
}

// next returns the next struct of the stream and learns the types before it.
func (d *gobDecoder) next() (record, error) {
	for {
		body, err := readMessage(d.r)
		if err != nil {
			return nil, err
		}
		m := &gobReader{body}
		id, err := m.int()
		switch {
		case err != nil:
			return nil, err
		case id < 0:
			if err := d.learn(int(-id), m); err != nil {
				return nil, err
			}
			continue
		}
		v, err := d.value(m, int(id), 0)
		if err != nil {
			return nil, err
		}
		r, ok := v.(record)
		if !ok {
			return nil, fmt.Errorf("%w: a struct was expected", errGob)
		}
		return r, nil
	}
}

// maxTypes bounds what a stream may define; a result has a dozen.
const maxTypes = 200

func (d *gobDecoder) learn(id int, m *gobReader) error {
	v, err := d.value(m, gobWireType, 0)
	if err != nil {
		return err
	}
	if len(d.types) > maxTypes || id < 64 {
		return fmt.Errorf("%w: type %d", errGob, id)
	}
	w, _ := v.(record)
	if s := w.record("StructT"); s != nil {
		t := gobType{fields: []field{}}
		for _, f := range s.records("Field") {
			t.fields = append(t.fields, field{f.text("Name"), f.int("Id")})
		}
		d.types[id] = t
		return nil
	}
	if s := w.record("SliceT"); s != nil {
		d.types[id] = gobType{elem: s.int("Elem")}
		return nil
	}
	return fmt.Errorf("%w: type %d is neither struct nor list", errGob, id)
}

// deepest bounds nesting: a result has four levels.
const deepest = 16

func (d *gobDecoder) value(m *gobReader, id, depth int) (any, error) {
	switch id {
	case gobBool:
		v, err := m.uint()
		return v != 0, err
	case gobInt:
		return m.int()
	case gobUint:
		return m.uint()
	case gobBytes:
		return m.bytes()
	case gobString:
		b, err := m.bytes()
		return string(b), err
	}
	t, ok := d.types[id]
	switch {
	case !ok || depth > deepest:
		return nil, fmt.Errorf("%w: a value of type %d", errGob, id)
	case t.fields != nil:
		return d.fields(m, t.fields, depth)
	}
	return d.list(m, t.elem, depth)
}

// fields reads a struct: each field has its distance from the one before.
func (d *gobDecoder) fields(m *gobReader, fields []field, depth int) (record, error) {
	out := record{}
	for at := -1; ; {
		delta, err := m.uint()
		if err != nil || delta == 0 {
			return out, err
		}
		if delta > uint64(len(fields)-1-at) {
			return nil, fmt.Errorf("%w: a field beyond the last", errGob)
		}
		at += int(delta)
		if out[fields[at].name], err = d.value(m, fields[at].typ, depth+1); err != nil {
			return nil, err
		}
	}
}

func (d *gobDecoder) list(m *gobReader, elem, depth int) ([]any, error) {
	n, err := m.uint()
	if err != nil {
		return nil, err
	}
	if n > uint64(len(m.data)) { // every element has at least one byte
		return nil, fmt.Errorf("%w: a list of %d", errGob, n)
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
