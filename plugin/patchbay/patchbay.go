// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package patchbay is the plugin `patchbay`: its configuration holds a list of plugins, and
// it runs them all in one process with one firewall transaction, so that a runtime pays one
// exec for a whole chain. `patchbay convert` writes this form from an ordinary conflist.
//
// A member runs in process when CNI_PATH finds this program under its name or nothing at
// all; another program found there is exec'd, as the runtime would.
package patchbay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "patchbay"

// Plugin is the plugin.
var Plugin = plugin.Plugin{
	Name:       name,
	Kind:       plugin.Interface,
	About:      "runs a whole list of plugins in one process, with one firewall transaction",
	MinVersion: "0.3.0", // chaining needs prevResult
	Conf:       func() any { return new(Conf) },

	Validate: func(r *plugin.Request) error { _, err := load(r); return err },

	Add:    add,
	Del:    del,
	Check:  askAll,
	GC:     gc,
	Status: askAll,
}

// Conf is the configuration.
type Conf struct {
	// Plugins are plugin configurations as in a conflist, at least one. Each may have
	// `capabilities`; the outer plugin must declare their union, which `patchbay convert`
	// does. DEL and GC work without them, from the records.
	// Reference: none, ours only.
	Plugins []json.RawMessage `json:"plugins"`

	// RuntimeConfig is written by the runtime and passed to the members that declare the
	// capability.
	// Reference: none, ours only.
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`

	// Args is passed to members that have none of their own.
	// Reference: none, ours only.
	Args json.RawMessage `json:"args"`
}

// add runs the members in order and pushes the DEL of each that succeeded. A failed member
// has rolled itself back; a DEL could remove an attachment that the member refused to make
// twice.
func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	members, err := load(r)
	if err != nil {
		return nil, err
	}
	prev := r.Prev()
	for _, m := range members {
		if err := r.Step("member " + m.Type); err != nil {
			return nil, err
		}
		if dry := r.Session.Dry; dry != nil {
			dry("# " + m.Type)
		}
		prev, err = m.Add(ctx, prev)
		if (err == nil || errors.Is(err, plugin.ErrResult)) && r.Session.Dry == nil {
			r.Undo(func(ctx context.Context) error { return m.Do(ctx, spec.Del, nil) })
		}
		if err != nil {
			return nil, failed(m, err, "add")
		}
	}
	return prev, nil
}

// del runs every member in reverse order, and goes on after errors.
func del(ctx context.Context, r *plugin.Request) error {
	members := remaining(r)
	var errs []error
	for i := len(members) - 1; i >= 0; i-- {
		m := members[i]
		if err := m.Do(ctx, spec.Del, r.Head.PrevResult); err != nil {
			errs = append(errs, failed(m, err, "delete"))
		}
	}
	return errors.Join(errs...)
}

// askAll is CHECK and STATUS: every member answers, as in a list of a runtime
// (docs/adr/0037).
func askAll(ctx context.Context, r *plugin.Request) error {
	members, err := load(r)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range members {
		if err := m.Do(ctx, r.Verb, r.Head.PrevResult); err != nil {
			errs = append(errs, failed(m, err, string(r.Verb)))
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// gc calls every member, and goes on after errors.
func gc(ctx context.Context, r *plugin.Request) error {
	var errs []error
	for _, m := range remaining(r) {
		if err := m.Do(ctx, spec.GC, nil); err != nil {
			errs = append(errs, failed(m, err, "GC"))
		}
	}
	return errors.Join(errs...)
}

// failed names the member of an error.
func failed(m *plugin.Inner, err error, verb string) error {
	return fmt.Errorf("plugin type=%q failed (%s): %w", m.Type, verb, err)
}
