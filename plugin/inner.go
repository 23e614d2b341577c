// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/spec"
)

// Inner is a plugin whose configuration is part of another plugin's configuration: a member of a
// `patchbay` list, or the plugin inside `wrap`. The outer plugin calls it as a runtime would,
// with the environment of the outer request.
type Inner struct {
	Type string

	request *Request
	conf    spec.Object
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
	if err := spec.ValidatePluginType(head.Type); err != nil {
		return nil, err
	}
	i.Type = head.Type
	var err error
	if i.conf, err = spec.ParseObject(raw); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	if _, own := i.conf.Get("args"); !own && len(given.Args) > 0 {
		err = i.conf.Set("args", given.Args)
	}
	return i, errors.Join(err, i.head(granted(head.Capabilities, given)))
}

// head writes the keys that only the runtime may set. If share is nil, runtimeConfig stays.
func (i *Inner) head(share map[string]json.RawMessage) error {
	keys := spec.RuntimeKeys{Name: i.request.Network, CNIVersion: i.request.Version, Config: share}
	if valid, ok := i.request.Head.Valid(); ok {
		keys.GC = &spec.GCKeys{Valid: valid, Listed: i.request.Listed(), Everyones: i.request.Everyones()}
	}
	return errors.Join(i.conf.Runtime(keys), i.conf.Set("type", i.Type))
}

// granted returns the capabilities that the plugin declares. It is never nil.
func granted(declared map[string]bool, given Given) map[string]json.RawMessage {
	all := given.AllCaps && len(declared) == 0
	share := make(map[string]json.RawMessage)
	for name, value := range given.Caps {
		if all || declared[name] {
			share[name] = value
		}
	}
	return share
}

// Config returns the whole configuration. prev is a previous result in the request's version;
// nil means none.
func (i *Inner) Config(prev json.RawMessage) ([]byte, error) {
	i.conf.Delete("prevResult")
	if len(prev) > 0 {
		if err := i.conf.Set("prevResult", prev); err != nil {
			return nil, spec.Errorf(spec.CodeDecoding, "encode configuration: %w", err)
		}
	}
	data, err := i.conf.JSON()
	if err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "encode configuration: %w", err)
	}
	return data, nil
}

// SetConfig replaces the configuration, except the keys that only the runtime may set: name,
// cniVersion, type, prevResult and what a GC gets.
func (i *Inner) SetConfig(data []byte) error {
	conf, err := spec.ParseObject(data)
	if err != nil {
		return spec.Errorf(spec.CodeDecoding, "error parsing configuration: %w", err)
	}
	i.conf = conf
	return i.head(nil)
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
	return i.request.Session.Do(ctx, i.Type, call)
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
