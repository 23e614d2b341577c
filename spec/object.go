// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/lightjson"
)

// Object is the configuration of a plugin. Plugins ignore the case of keys, so an Object does, too: Get
// finds a key in any case, Set leaves no other spelling that a plugin could read instead. Numbers
// stay as they are.
type Object struct{ values map[string]json.RawMessage }

// ParseObject reads a JSON object.
func ParseObject(data []byte) (o Object, err error) {
	if err := lightjson.Unmarshal(data, &o.values); err != nil {
		return o, err
	}
	if o.values == nil {
		o.values = make(map[string]json.RawMessage)
	}
	return o, nil
}

// Get returns the value of a key. Of several spellings it returns the last one in JSON, which is the one that
// a plugin reads.
func (o Object) Get(key string) (value json.RawMessage, ok bool) {
	last := ""
	for spelling, v := range o.values {
		if strings.EqualFold(spelling, key) && (!ok || spelling > last) {
			last, value, ok = spelling, v, true
		}
	}
	return value, ok
}

// Set gives a key a value, and deletes the key's other spellings.
func (o Object) Set(key string, value any) error {
	data, err := lightjson.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	o.Delete(key)
	o.values[key] = data
	return nil
}

// Delete deletes keys in every spelling.
func (o Object) Delete(keys ...string) {
	for spelling := range o.values {
		for _, key := range keys {
			if strings.EqualFold(spelling, key) {
				delete(o.values, spelling)
			}
		}
	}
}

// JSON returns the object with its keys sorted.
func (o Object) JSON() ([]byte, error) { return lightjson.Marshal(o.values) }

// These keys have the list of valid attachments (Conf).
const (
	validKey    = "cni.dev/valid-attachments"
	validOldKey = "cni.dev/attachments" // in version 1.1.0 of the specification (cni#1101)
)

// Our runtime library adds these keys to the configuration of a GC (GCKeys).
const (
	ListedKey    = "patchbay/listed"
	EveryonesKey = "patchbay/everyones"
)

// SetValid sets the list of the attachments that a GC must keep.
func (o Object) SetValid(valid []AttachmentKey) error {
	if valid == nil {
		valid = []AttachmentKey{} // encodes as [], never as null
	}
	if err := o.Set(validOldKey, valid); err != nil {
		return err
	}
	return o.Set(validKey, valid)
}

// RuntimeKeys are the values of keys that only a runtime may set.
type RuntimeKeys struct {
	Name, CNIVersion string

	// Config is the plugin's part of the capabilities (runtimeConfig). If it is nil, the configuration's own
	// runtimeConfig stays, as in libcni.
	Config map[string]json.RawMessage

	Prev json.RawMessage // prevResult; empty means none
	GC   *GCKeys         // only for a GC that has a list of valid attachments
}

// GCKeys are the keys that a runtime passes to a GC.
type GCKeys struct {
	Valid     []AttachmentKey
	Listed    time.Time // when the caller began to list them
	Everyones bool      // they are those of every runtime
}

// Runtime sets the keys that only a runtime may set, and deletes those that k does not set, in every spelling
// (SPEC.md, "Deriving request configuration from plugin configuration").
func (o Object) Runtime(k RuntimeKeys) error {
	for spelling := range o.values {
		const reserved = "cni.dev/"
		if len(spelling) >= len(reserved) && strings.EqualFold(spelling[:len(reserved)], reserved) {
			delete(o.values, spelling)
		}
	}
	o.Delete("capabilities", "prevResult", ListedKey, EveryonesKey)
	set := map[string]any{"name": k.Name, "cniVersion": k.CNIVersion}
	if k.Config != nil {
		o.Delete("runtimeConfig")
	}
	if len(k.Config) > 0 {
		set["runtimeConfig"] = k.Config
	}
	if len(k.Prev) > 0 {
		set["prevResult"] = k.Prev
	}
	if k.GC != nil {
		set[ListedKey] = k.GC.Listed
		if k.GC.Everyones {
			set[EveryonesKey] = true
		}
		if err := o.SetValid(k.GC.Valid); err != nil {
			return err
		}
	}
	for key, value := range set {
		if err := o.Set(key, value); err != nil {
			return err
		}
	}
	return nil
}
