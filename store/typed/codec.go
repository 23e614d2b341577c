// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package typed

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/patchbay-net/patchbay/store"
)

// Schema is the version of every stored object. It changes when an older Patchbay would
// misread what a newer one writes. A new field that the older one may ignore does not
// change it.
const Schema = 1

// maxObject is the largest size of an object in bytes: etcd accepts 1.5 MiB in one request,
// and the rest of the request needs room.
const maxObject = 256 << 10

// stored is the stored form of an object.
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

// Marshal is json.Marshal without the escaping of HTML: plugin configurations keep their
// text.
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
		return object, fmt.Errorf("%w: damaged: its content is that of %q", store.ErrUnreadable, got)
	}
	return object, nil
}

// gone returns a deleted object, of which only the key is known, or ErrName.
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
