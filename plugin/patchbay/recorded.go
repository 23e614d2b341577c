// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay

import (
	"fmt"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// remaining are the members of a DEL or GC: those of the list and, when it is damaged,
// those that have records, of this attachment or for a GC of any. It reports that the
// configuration is wrong, but that must not keep anything from being removed. Only a member
// of another program that cannot be read any more is lost.
func remaining(r *plugin.Request) []*plugin.Inner {
	members, err := load(r)
	if err == nil {
		return members
	}
	kernel.Warn(r, err)
	return append(recorded(r, members), members...)
}

// recorded are the plugins with a record that are not among members, each with the part of
// the configuration that DEL needs, in the order of a chain.
func recorded(r *plugin.Request, members []*plugin.Inner) (list []*plugin.Inner) {
	kinds := kindsOnRecord(r)
	for _, m := range members {
		delete(kinds, m.Type)
	}
	// DEL runs in reverse order: chained plugins first, addresses last.
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

// kindsOnRecord are the types of plugins that have records in the network, for a
// DEL those of the attachment.
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
