// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"testing"
)

// FuzzDecode decodes any content of an engine. Either decode returns an error, or the object has
// the content's key and can be stored again.
func FuzzDecode(f *testing.F) {
	for _, object := range []Object{
		Network{Name: "n", Plugins: nil}, Node{ID: "n"}, Block{Network: "n"}, Entry{Network: "n", Node: "h", ID: "e"},
	} {
		data, err := encode(object)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(object.Key(), data)
	}
	f.Add("n/10.1.0.0-24", []byte(`{"schema":1,"object":{"network":"n","prefix":"10.1.0.9/24","node":"h"}}`))
	f.Add("n/::-0", []byte(`{"schema":1,"object":{"network":"n","prefix":"::/0"}}`))
	f.Add("n", []byte(`{"schema":2,"object":{"name":"n"}}`))
	f.Add("n", []byte(`{"schema":1,"object":{"name":"n","plugins":[null,{"a":1e999}]}}`))
	f.Add("../n", []byte(`{"schema":1}`))
	f.Fuzz(func(t *testing.T, key string, data []byte) {
		readAgain(t, networks(), key, data)
		readAgain(t, nodes(), key, data)
		readAgain(t, blocks(), key, data)
		readAgain(t, endpoints(), key, data)
	})
}

func readAgain[T Object](t *testing.T, k kind[T], key string, data []byte) {
	object, err := k.decode(key, data)
	if err != nil {
		if !errors.Is(err, ErrUnreadable) {
			t.Fatalf("%s %q: %v", k.one, key, err)
		}
		return
	}
	gone, err := k.deleted(key)
	if err != nil || gone.Key() != key {
		t.Fatalf("%s %q can be stored, but not go: %v", k.one, key, err)
	}
	again, err := encode(object)
	if err != nil {
		t.Fatalf("%s %q: store again: %v", k.one, key, err)
	}
	if _, err := k.decode(key, again); err != nil {
		t.Fatalf("%s %q: read again: %v\n%s", k.one, key, err, again)
	}
}
