// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"os"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/spec"
)

// Inner is a plugin whose configuration is part of another plugin's configuration: a member of a
// `patchbay` list, or the plugin inside `wrap`. The outer plugin calls it as a runtime would,
// with the environment of the outer request.
type Inner struct {
	Type string

	request *Request
	conf    map[string]json.RawMessage
	builtIn bool
	ready   *Request // what Prepare made
}

// Given is what an outer plugin passes to an inner one. Caps is the outer plugin's runtimeConfig.
// Args are the outer plugin's args, for an inner plugin that has no args. If AllCaps is set, an
// inner plugin that declares no capabilities gets all of Caps. If BuiltIn is set, the inner plugin
// and its delegates run in this process, whatever CNI_PATH has.
type Given struct {
	Caps    map[string]json.RawMessage
	Args    json.RawMessage
	AllCaps bool
	BuiltIn bool
}

// NewInner reads an inner plugin's configuration. It sets what a runtime would set: name,
// version, the plugin's part of runtimeConfig, and the valid attachments of a GC.
func NewInner(r *Request, raw json.RawMessage, given Given) (*Inner, error) {
	var head struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	i := &Inner{request: r, builtIn: given.BuiltIn}
	if err := lightjson.Unmarshal(raw, &head); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	if err := lightjson.Unmarshal(raw, &i.conf); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	if err := spec.ValidatePluginType(head.Type); err != nil {
		return nil, err
	}
	i.Type = head.Type
	i.grant(head.Capabilities, given)
	if _, own := i.conf["args"]; !own && len(given.Args) > 0 {
		i.conf["args"] = given.Args
	}
	i.head()
	return i, nil
}

// head writes the keys that only the runtime may set.
func (i *Inner) head() {
	i.set("name", i.request.Network)
	i.set("cniVersion", i.request.Version)
	i.set("type", i.Type)
	if valid, ok := i.request.Head.Valid(); ok {
		i.set(validKey, valid)
		i.set(validOldKey, valid)
		i.set(clock.ListedKey, i.request.Listed())
	}
}

// grant writes runtimeConfig with the capabilities that the plugin declares. It then removes the
// declaration, as a runtime must (SPEC.md, "Deriving request").
func (i *Inner) grant(declared map[string]bool, given Given) {
	all := given.AllCaps && len(declared) == 0
	delete(i.conf, "capabilities")
	delete(i.conf, "runtimeConfig")
	share := make(map[string]json.RawMessage)
	for name, value := range given.Caps {
		if all || declared[name] {
			share[name] = value
		}
	}
	if len(share) > 0 {
		i.set("runtimeConfig", share)
	}
}

// set writes a key. The value is a string, a list of strings, or JSON that was read before, so it
// can always be encoded.
func (i *Inner) set(key string, value any) {
	data, err := lightjson.Marshal(value)
	if err != nil {
		panic("patchbay: encode " + key + ": " + err.Error())
	}
	i.conf[key] = data
}

// Config returns the whole configuration. prev is a previous result in the request's version;
// nil means none.
func (i *Inner) Config(prev json.RawMessage) ([]byte, error) {
	delete(i.conf, "prevResult")
	if len(prev) > 0 {
		i.conf["prevResult"] = prev
	}
	data, err := lightjson.Marshal(i.conf)
	if err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "encode configuration: %w", err)
	}
	return data, nil
}

// SetConfig replaces the configuration, except the keys that only the runtime may set: name,
// cniVersion, type, prevResult and the valid attachments of a GC.
func (i *Inner) SetConfig(data []byte) error {
	conf := make(map[string]json.RawMessage)
	if err := lightjson.Unmarshal(data, &conf); err != nil {
		return spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	delete(conf, validKey)
	delete(conf, validOldKey)
	delete(conf, clock.ListedKey)
	i.conf = conf
	i.head()
	return nil
}

// Prepare begins an ADD. If the plugin would refuse its configuration, Prepare refuses it now,
// before another plugin changes anything. A plugin of another program checks its configuration
// later itself.
func (i *Inner) Prepare() error {
	call, err := i.call(spec.Add, nil)
	if err != nil {
		return err
	}
	s := i.request.Session
	p, _, err := s.resolve(i.Type, call)
	if err != nil || p == nil {
		return nil //nolint:nilerr // Add reports it
	}
	r, err := newRequest(p, call, s)
	if err != nil {
		return err
	}
	if _, err := r.Conf(); err != nil {
		return err
	}
	i.ready = r
	return nil
}

// Reserves has Plugin.Reserved called when the addresses are known, and undo before it. Prepare comes
// first.
func (i *Inner) Reserves(undo func()) {
	r := i.ready
	if r == nil || r.Plugin.Reserved == nil {
		return
	}
	r.Session.OnReserved(func(ctx context.Context, ipam *spec.Result) error {
		undo()
		return r.Plugin.Reserved(ctx, r, ipam)
	})
}

// Add calls ADD with prev as the previous result.
func (i *Inner) Add(ctx context.Context, prev *spec.Result) (*spec.Result, error) {
	if r := i.ready; r != nil {
		i.ready = nil
		ctx, err := deeper(ctx, i.Type)
		if err != nil {
			return nil, err
		}
		return r.addAfter(ctx, prev)
	}
	call, err := i.call(spec.Add, nil)
	if err != nil {
		return nil, err
	}
	return i.request.Session.Add(ctx, i.Type, call, prev)
}

// Do calls a verb that has no result.
func (i *Inner) Do(ctx context.Context, verb spec.Verb, prev json.RawMessage) error {
	call, err := i.call(verb, prev)
	if err != nil {
		return err
	}
	_, err = i.request.Session.Invoke(ctx, i.Type, call)
	return err
}

// call builds the call of a verb of the plugin, with the environment of the request.
func (i *Inner) call(verb spec.Verb, prev json.RawMessage) (*spec.Call, error) {
	stdin, err := i.Config(prev)
	if err != nil {
		return nil, err
	}
	call := *i.request.Call
	call.Verb, call.Config = verb, stdin
	if i.builtIn {
		call.Path = []string{os.DevNull} // finds no program
	}
	return &call, nil
}
