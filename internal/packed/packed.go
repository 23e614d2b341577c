// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package packed puts the plugins of a network into one plugin of type patchbay, and takes them
// out again. That plugin runs them in one process.
package packed

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// Type is the type of the plugin that runs other plugins in one process.
const Type = "patchbay"

// one is the configuration of a plugin of this type.
type one struct {
	Type         string            `json:"type"`
	Capabilities map[string]bool   `json:"capabilities,omitempty"`
	Plugins      []json.RawMessage `json:"plugins"`
}

// head holds the keys of a plugin that runtimes read.
type head struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
}

// Pack returns the configuration of one plugin that runs the given ones. It declares all their
// capabilities, because runtimes pass the values of a capability only to a plugin of the list that
// declares it. Pack refuses a plugin that is packed already, as the plugin itself does in an ADD.
func Pack(plugins []json.RawMessage) (json.RawMessage, error) {
	if len(plugins) == 0 {
		return nil, spec.Errorf(spec.CodeInvalidConfig, "error parsing configuration list: no plugins in list")
	}
	o := one{Type: Type, Plugins: plugins}
	for _, raw := range plugins {
		h, err := headOf(raw)
		if err != nil {
			return nil, err
		}
		if h.Type == Type {
			return nil, spec.Errorf(spec.CodeInvalidConfig, "it has a plugin of type patchbay already")
		}
		o.Capabilities = Union(o.Capabilities, h.Capabilities)
	}
	return json.Marshal(o)
}

func headOf(raw json.RawMessage) (h head, err error) {
	if err := json.Unmarshal(raw, &h); err != nil {
		return h, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	return h, spec.ValidatePluginType(h.Type)
}

// Union returns to with those capabilities added that are true in more.
func Union(to, more map[string]bool) map[string]bool {
	for name, on := range more {
		if on && to == nil {
			to = make(map[string]bool)
		}
		if on {
			to[name] = true
		}
	}
	return to
}

// Members returns the plugins in a packed plugin. A member gets only those capabilities that the
// packed plugin declares too, so Members takes the others from it.
func Members(raw json.RawMessage) (list []json.RawMessage, err error) {
	var o one
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	for i, m := range o.Plugins {
		granted, err := limit(m, o.Capabilities)
		if err != nil {
			return nil, fmt.Errorf("member %d of %d: %w", i+1, len(o.Plugins), err)
		}
		list = append(list, granted)
	}
	if len(list) == 0 {
		return nil, spec.Errorf(spec.CodeInvalidConfig, "the plugin patchbay has no plugins")
	}
	return list, nil
}

// limit returns a plugin without the capabilities that are not in granted.
func limit(raw json.RawMessage, granted map[string]bool) (json.RawMessage, error) {
	h, err := headOf(raw)
	if err != nil {
		return nil, err
	}
	before := len(h.Capabilities)
	maps.DeleteFunc(h.Capabilities, func(name string, on bool) bool { return on && !granted[name] })
	if len(h.Capabilities) == before {
		return raw, nil
	}
	conf, err := spec.ParseObject(raw)
	if err != nil {
		return nil, err
	}
	if conf.Delete("capabilities"); len(h.Capabilities) > 0 {
		err = conf.Set("capabilities", h.Capabilities)
	}
	if err != nil {
		return nil, err
	}
	return conf.JSON()
}

// Unpack returns the plugins in a packed plugin, for a list in which they take its place. It refuses
// keys that plugins of a list cannot have in common, such as builtIn.
func Unpack(raw json.RawMessage) ([]json.RawMessage, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		known := func(k string) bool { return strings.EqualFold(k, key) }
		if !slices.ContainsFunc([]string{"type", "capabilities", "plugins", "name", "cniVersion"}, known) {
			return nil, &KeyError{key}
		}
	}
	return Members(raw)
}

// KeyError is the error about a key of a packed plugin that separate plugins cannot have.
type KeyError struct{ Key string }

func (e *KeyError) Error() string {
	return fmt.Sprintf("its plugin patchbay has the key %s, which separate plugins cannot have", e.Key)
}
