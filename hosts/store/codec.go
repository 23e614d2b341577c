// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// schema is the version of the stored form of objects. It must be raised when an older Patchbay
// would misread what a newer one writes. A new field that an older one may ignore does not
// raise it.
const schema = 1

// maxObject is the largest size of an object in bytes. etcd accepts requests of 1.5 MiB, and
// the rest of a request needs room too.
const maxObject = 256 << 10

// stored is the stored form of an object.
type stored struct {
	Schema int             `json:"schema"`
	Object json.RawMessage `json:"object"`
}

func encode[T Object](object T) ([]byte, error) {
	data, err := marshal(object)
	if err != nil {
		return nil, err
	}
	if len(data) > maxObject {
		return nil, fmt.Errorf("it has %d bytes, %d at most", len(data), maxObject)
	}
	return marshal(stored{Schema: schema, Object: data})
}

// marshal encodes as json.Marshal does, but does not escape HTML, so that the text of plugin
// configurations stays as it is.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// decode decodes what encode wrote under this key. Its errors are ErrUnreadable.
func (k kind[T]) decode(key string, data []byte) (object T, err error) {
	if _, err := k.names(key); err != nil {
		return object, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	var s stored
	if err := json.Unmarshal(data, &s); err != nil {
		return object, fmt.Errorf("%w: damaged: %w", ErrUnreadable, err)
	}
	if s.Schema > schema {
		return object, fmt.Errorf("%w: of schema %d, this Patchbay reads %d: update it", ErrUnreadable, s.Schema, schema)
	}
	if s.Schema < 1 {
		return object, fmt.Errorf("%w: damaged: it has no schema", ErrUnreadable)
	}
	if err := json.Unmarshal(s.Object, &object); err != nil {
		return object, fmt.Errorf("%w: damaged: %w", ErrUnreadable, err)
	}
	if got := object.Key(); got != key {
		return object, fmt.Errorf("%w: damaged: its content is that of %q", ErrUnreadable, got)
	}
	return object, nil
}

// gone returns a deleted object, which has only the fields of its key, or ErrName.
func (k kind[T]) gone(key string) (object T, err error) {
	names, err := k.names(key)
	if err == nil {
		object, err = k.blank(names)
	}
	if err == nil && object.Key() != key {
		err = fmt.Errorf("%w: it would be %q", ErrName, object.Key())
	}
	return object, err
}
