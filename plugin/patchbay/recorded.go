// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay

import (
	"encoding/json"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/plugin"
)

// remaining are the members of a DEL or GC: those of the list and, when it is
// damaged, those that have records, of this attachment or for a GC of any. The
// configuration is told to be wrong, which is no reason to keep anything.
// Only a foreign member that cannot be read any more is lost.
func remaining(r *plugin.Request) []*member {
	members, err := load(r)
	if err == nil {
		return members
	}
	kernel.Warn(r, err)
	return append(recorded(r, members), members...)
}

// recorded are the plugins with a record that are not among members, each with
// as much configuration as DEL needs, in the order of a chain.
func recorded(r *plugin.Request, members []*member) (list []*member) {
	records, torn, err := kernel.Of(r).Records.Scan(r.Network)
	if err != nil {
		kernel.Warn(r, err)
	}
	kinds := make(map[string]bool)
	for _, rec := range records {
		kinds[rec.Plugin] = kinds[rec.Plugin] || r.Owner == "" || rec.Owner == r.Owner
	}
	for _, t := range torn {
		kinds[t.Plugin] = kinds[t.Plugin] || r.Owner == "" || t.Owner == r.Owner
	}
	for _, m := range members {
		delete(kinds, m.kind)
	}
	for _, p := range r.Session.Plugins {
		if kinds[p.Name] {
			list = append(list, bare(r, p.Name))
		}
	}
	// DEL goes backwards: what is chained first, addresses last.
	slices.SortStableFunc(list, func(a, b *member) int { return rank(r, a) - rank(r, b) })
	return list
}

// bare is a member of which only the type is known.
func bare(r *plugin.Request, kind string) *member {
	m := &member{kind: kind, conf: make(map[string]json.RawMessage)}
	m.set("type", kind)
	m.identify(r)
	return m
}

func rank(r *plugin.Request, m *member) int {
	for _, p := range r.Session.Plugins {
		if p.Name == m.kind {
			return map[plugin.Kind]int{plugin.IPAM: 0, plugin.Interface: 1, plugin.Chained: 2}[p.Kind]
		}
	}
	return 0
}

// identify gives a member what the outer configuration says about the network.
func (m *member) identify(r *plugin.Request) {
	m.set("name", r.Network)
	m.set("cniVersion", r.Version)
	if valid, ok := r.Head.Valid(); ok {
		m.set("cni.dev/valid-attachments", valid)
		m.set("cni.dev/attachments", valid)
	}
}
