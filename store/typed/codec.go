// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package typed

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/patchbay-net/patchbay/store"
)

// Schema is the number that goes with every stored object. It changes when an
// older Patchbay would misread what a newer one writes; a new field alone, which
// the older one may ignore, does not change it.
const Schema = 1

// maxObject is the size of an object in bytes: what etcd takes in one request
// (1.5 MiB), with room for the rest of the request.
const maxObject = 256 << 10

// stored is an object as it is stored.
type stored struct {
	Schema int             `json:"schema"`
	Object json.RawMessage `json:"object"`
}

func encode[T store.Object](object T) ([]byte, error) {
	data, err := Marshal(object)
	if err != nil {
		return nil, err
	}
	if len(data) > maxObject {
		return nil, fmt.Errorf("it has %d bytes, %d at most", len(data), maxObject)
	}
	return Marshal(stored{Schema: Schema, Object: data})
}

// Marshal is json.Marshal, and leaves the text of plugin configurations as it is:
// no HTML is escaped.
func Marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// decode reads what encode wrote, under its key. Its errors are ErrUnreadable.
func (k kind[T]) decode(key string, data []byte) (object T, err error) {
	if _, err := k.names(key); err != nil {
		return object, fmt.Errorf("%w: %w", store.ErrUnreadable, err)
	}
	var s stored
	if err := json.Unmarshal(data, &s); err != nil {
		return object, fmt.Errorf("%w: damaged: %w", store.ErrUnreadable, err)
	}
	if s.Schema > Schema {
		return object, fmt.Errorf("%w: of schema %d, this Patchbay reads %d: update it", store.ErrUnreadable, s.Schema, Schema)
	}
	if s.Schema < 1 {
		return object, fmt.Errorf("%w: damaged: it has no schema", store.ErrUnreadable)
	}
	if err := json.Unmarshal(s.Object, &object); err != nil {
		return object, fmt.Errorf("%w: damaged: %w", store.ErrUnreadable, err)
	}
	if got := object.Key(); got != key {
		return object, fmt.Errorf("%w: damaged: it is %q by what it says", store.ErrUnreadable, got)
	}
	return object, nil
}

// gone is an object of which there is only the key left, or ErrName.
func (k kind[T]) gone(key string) (object T, err error) {
	names, err := k.names(key)
	if err == nil {
		object, err = k.blank(names)
	}
	if err == nil && object.Key() != key {
		err = fmt.Errorf("%w: it would be %q", store.ErrName, object.Key())
	}
	return object, err
}
