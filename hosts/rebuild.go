// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/store"
)

// rebuildTime is how long a store that lost its data has for getting it again.
const rebuildTime = 10 * time.Minute

// rebuild adds to the world what is remembered, while the store is not whole: it
// does not know this host, which it did, or did not until a moment ago. Networks
// come back one by one, and hosts too: nothing goes because another one was
// faster. A host that somebody forgot believes in what it had for as long.
func (m *mirror) rebuild(w *world) {
	if _, here := m.nodes[m.self]; !here && m.cache.has(m.self) {
		w.Doubted = time.Now().Add(rebuildTime).Round(time.Minute) // each new one is written to the disk
	}
	if time.Now().After(w.Doubted) {
		return
	}
	for _, n := range m.cache.Networks {
		if _, ok := m.networks[n.Name]; !ok && apart(&n, w.Networks) == nil {
			w.Networks = append(w.Networks, n)
		}
	}
	for _, n := range m.cache.Nodes {
		if _, ok := m.nodes[n.ID]; !ok {
			w.Nodes = append(w.Nodes, n)
		}
	}
	for _, b := range m.cache.Blocks {
		taken := func(o store.Block) bool { return o.Network == b.Network && o.Prefix.Overlaps(b.Prefix) }
		if b.Node != m.self && !slices.ContainsFunc(w.Blocks, taken) { // its own it has to claim
			w.Blocks = append(w.Blocks, b)
		}
	}
}

// tablesOf are the tables of a world.
func tablesOf(w *world) tables {
	t := tables{map[string]store.Network{}, map[string]store.Node{}, map[string]store.Block{}, map[string]store.Endpoint{}}
	fill(t.networks, w.Networks)
	fill(t.nodes, w.Nodes)
	fill(t.blocks, w.Blocks)
	fill(t.endpoints, w.Endpoints)
	return t
}

func fill[T store.Object](table map[string]T, from []T) {
	for _, object := range from {
		table[object.Key()] = object
	}
}
