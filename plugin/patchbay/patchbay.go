// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package patchbay is the plugin `patchbay`. Its configuration contains a list of plugins. The
// plugin runs them in one process with one firewall transaction. So a runtime starts only one
// program for a whole chain. `patchbay convert` makes such a configuration from an ordinary
// conflist.
//
// A member is one plugin of the list. If CNI_PATH has another program under the member's name,
// the plugin executes that program, as a runtime would, unless the configuration has `builtIn`.
// Otherwise the member runs in this process.
package patchbay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "patchbay"

// Plugin has the name, the versions and the functions of this plugin.
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

// Conf is the configuration of this plugin.
type Conf struct {
	// Plugins are plugin configurations as in a conflist, at least one. Each may have
	// `capabilities`; the outer plugin must declare all of them, and `patchbay convert` does so.
	// DEL and GC do not need the list, because they use the records. Reference: none, ours only.
	Plugins []json.RawMessage `json:"plugins"`

	// BuiltIn runs the members and their delegates in this program, even if CNI_PATH has other
	// programs of their names. Reference: none, ours only.
	BuiltIn bool `json:"builtIn"`

	// RuntimeConfig is written by the runtime. Its values are passed to the members that declare
	// the capability. Reference: none, ours only.
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`

	// Args is passed to members that have no args. Reference: none, ours only.
	Args json.RawMessage `json:"args"`
}

// add validates the configurations of all members before it changes anything, because the runtime
// sends a part of them for each pod. Then add runs the members in order and pushes the DEL of
// each member that succeeded. It does not call DEL for a member that failed, because that member
// has rolled itself back. If the member failed because the attachment exists, a DEL would remove
// the existing attachment.
func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	members, err := load(r)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if err := m.Prepare(); err != nil {
			return nil, failed(m, err, "add")
		}
		m.Reserves(func() { undoBy(r, m) })
	}
	prev := r.Prev()
	for _, m := range members {
		if err := r.Step("member " + m.Type); err != nil {
			return nil, err
		}
		explain(r, m)
		prev, err = m.Add(ctx, prev)
		if (err == nil || errors.Is(err, plugin.ErrResult)) && r.Session.Dry == nil {
			undoBy(r, m)
		}
		if err != nil {
			return nil, failed(m, err, "add")
		}
	}
	return prev, nil
}

// undoBy adds a member's DEL to the undo steps of the ADD.
func undoBy(r *plugin.Request, m *plugin.Inner) {
	r.Undo(func(ctx context.Context) error { return m.Do(ctx, spec.Del, nil) })
}

// del runs every member in reverse order.
func del(ctx context.Context, r *plugin.Request) error {
	return errors.Join(each(ctx, r, remaining(r), "delete", r.Head.PrevResult)...)
}

// askAll performs CHECK and STATUS. It asks every member, even after an error, as a runtime asks
// every plugin of a list (docs/adr/0037).
func askAll(ctx context.Context, r *plugin.Request) error {
	members, err := load(r)
	if err != nil {
		return err
	}
	return spec.Join(each(ctx, r, members, string(r.Verb), r.Head.PrevResult)...)
}

func gc(ctx context.Context, r *plugin.Request) error {
	return errors.Join(each(ctx, r, remaining(r), "GC", nil)...)
}

// each calls every member and continues after errors. But after a removal failed, it leaves out IPAM plugins, because
// objects that use the addresses may still exist. Only a damaged list has IPAM plugins as members.
func each(ctx context.Context, r *plugin.Request, members []*plugin.Inner, verb string, prev json.RawMessage) (errs []error) {
	for _, m := range members {
		explain(r, m)
		if removes := r.Verb == spec.Del || r.Verb == spec.GC; removes && len(errs) > 0 && r.Session.IsIPAM(m.Type) {
			continue
		}
		if err := m.Do(ctx, r.Verb, prev); err != nil {
			errs = append(errs, failed(m, err, verb))
		}
	}
	return errs
}

// explain prints to which member the next lines of a dry run belong.
func explain(r *plugin.Request, m *plugin.Inner) {
	if dry := r.Session.Dry; dry != nil {
		dry("# " + m.Type)
	}
}

// failed adds the member's name to an error.
func failed(m *plugin.Inner, err error, verb string) error {
	return fmt.Errorf("plugin type=%q failed (%s): %w", m.Type, verb, err)
}

// load decodes every member. If one is malformed, no member may run. For DEL and GC, load
// returns the well-formed members together with the first error.
func load(r *plugin.Request) (members []*plugin.Inner, err error) {
	if _, err := r.Conf(); err != nil {
		return nil, err
	}
	conf := plugin.ConfOf[Conf](r)
	if len(conf.Plugins) == 0 {
		return nil, spec.Invalid("error parsing configuration list: no plugins in list")
	}
	for i, raw := range conf.Plugins {
		m, merr := loadMember(raw, r, conf)
		if merr == nil {
			members = append(members, m)
		} else if err == nil {
			err = spec.AsError(merr).WithDetails("member %d of %d in network %s", i+1, len(conf.Plugins), r.Network)
		}
	}
	return members, err
}

func loadMember(raw json.RawMessage, r *plugin.Request, conf *Conf) (*plugin.Inner, error) {
	m, err := plugin.NewInner(r, raw, plugin.Given{Caps: conf.RuntimeConfig, Args: conf.Args, BuiltIn: conf.BuiltIn})
	if err != nil {
		return nil, err
	}
	if conf.BuiltIn && r.Session.Plugin(m.Type) == nil {
		return nil, spec.Invalid("no plugin %q is built in: leave builtIn out", m.Type)
	}
	if m.Type == name {
		return nil, spec.Invalid("a patchbay plugin cannot be a member of another one")
	}
	return m, nil
}

// remaining returns the members for a DEL, in reverse order, or for a GC. If the list is damaged, it adds the plugins
// that have records: for a DEL records of this attachment, for a GC records of any attachment. Then a GC uses the
// order of a DEL, too, so that no port leads to an address that is released. remaining only warns about the damage,
// because a wrong configuration must not stop a removal. It leaves out a member of another program whose
// configuration cannot be read.
func remaining(r *plugin.Request) []*plugin.Inner {
	members, err := load(r)
	if err != nil {
		kernel.Warn(r, err)
		members = append(recorded(r, members), members...)
	}
	if err != nil || r.Verb == spec.Del {
		slices.Reverse(members)
	}
	return members
}

// recorded returns the plugins that have a record but are not in members, in the order of a
// chain. Each gets the part of the configuration that its DEL needs.
func recorded(r *plugin.Request, members []*plugin.Inner) (list []*plugin.Inner) {
	kinds := kindsOnRecord(r)
	for _, m := range members {
		delete(kinds, m.Type)
	}
	// DEL runs the list in reverse, so chained plugins come first and IPAM last.
	for _, kind := range []plugin.Kind{plugin.IPAM, plugin.Interface, plugin.Chained} {
		for _, p := range r.Session.Plugins {
			if p.Kind != kind || !kinds[p.Name] {
				continue
			}
			m, err := plugin.NewInner(r, fmt.Appendf(nil, `{"type":%q}`, p.Name), plugin.Given{})
			if err != nil {
				kernel.Warn(r, err)
				continue
			}
			list = append(list, m)
		}
	}
	return list
}

// kindsOnRecord returns the types of plugins that have records in the network. For a DEL it
// considers only records of the attachment.
func kindsOnRecord(r *plugin.Request) map[string]bool {
	records, torn, err := kernel.Of(r).Records.Scan(r.Network)
	if err != nil {
		kernel.Warn(r, err)
	}
	kinds := make(map[string]bool)
	note := func(kind string, o owner.Key) {
		if r.Verb == spec.GC || o == r.Owner {
			kinds[kind] = true
		}
	}
	for _, rec := range records {
		note(rec.Plugin, rec.Owner)
	}
	for _, t := range torn {
		note(t.Plugin, t.Owner)
	}
	return kinds
}
