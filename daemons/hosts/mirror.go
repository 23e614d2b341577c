// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/internal/doubt"
)

// mirror is a copy of the store that follows its changes. It always holds the whole store, from
// one history. Its methods are safe for concurrent use.
type mirror struct {
	self   string // id of this node
	mu     sync.Mutex
	loaded bool // the saved world was loaded
	synced bool // this process has read the store
	cache  world

	networks  doubt.Table[store.Network]
	nodes     doubt.Table[store.Node]
	blocks    doubt.Table[store.Block]
	endpoints doubt.Table[store.Entry]

	changed func()
	suspect bool                 // the store went back, and the mirror has not read it since
	reread  func()               // makes follow read the whole store again; nil while follow does not watch
	doubt   time.Duration        // for this long after a loss of data, the store cannot say which hosts are gone
	updated time.Time            // when the store last sent something
	owned   int                  // counts how often the remembered blocks of this node changed
	back    map[string]time.Time // since the store lost its data: when it had a network ("network NAME") or a host's presence ("host ID") again
}

func byKey[T store.Object](all []T) map[string]T {
	out := make(map[string]T, len(all))
	for _, object := range all {
		out[object.Key()] = object
	}
	return out
}

// snapshot returns the current world. If there is one at all, loaded is true. If this process has
// read it from the store, synced is true. If not, an object that the world lacks may exist.
func (m *mirror) snapshot() (w world, loaded, synced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.synced {
		m.merge()
	}
	w = m.cache
	w.Own, w.Bridges, w.Seen = maps.Clone(m.cache.Own), slices.Clone(m.cache.Bridges), maps.Clone(m.cache.Seen)
	return w, m.loaded || m.synced, m.synced
}

// refresh sets in w what this host remembers about itself.
func (m *mirror) refresh(w *world) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.Given = m.cache.Given
	w.Own, w.Bridges = maps.Clone(m.cache.Own), slices.Clone(m.cache.Bridges)
}

// readAgain makes the mirror read the whole store again, as after the store went back.
func (m *mirror) readAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.suspect = true; m.reread != nil {
		m.reread()
	}
}

// wrote notes the revision at which this host wrote its own record.
func (m *mirror) wrote(self store.Node, at store.Revision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cache.Seen.see(self, at)
}

// remember stores which blocks are this node's.
func (m *mirror) remember(network string, blocks []netip.Prefix) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Equal(m.cache.Own[network], blocks) {
		if len(blocks) > 0 && len(m.cache.Given[network]) == 0 { // the bridge was removed, and an ADD will create it again
			m.cache.give(network, blocks)
		}
		return
	}
	m.owned++
	if m.cache.Own == nil {
		m.cache.Own = map[string][]netip.Prefix{}
	}
	if len(blocks) == 0 {
		delete(m.cache.Own, network)
		return
	}
	m.cache.Own[network] = slices.Clone(blocks)
	m.cache.give(network, blocks)
}

// give stores blocks whose first addresses a network's bridge may have.
func (w *world) give(network string, blocks []netip.Prefix) {
	all := slices.Concat(w.Given[network], blocks)
	slices.SortFunc(all, netip.Prefix.Compare)
	given := map[string][]netip.Prefix{}
	maps.Copy(given, w.Given)
	given[network] = slices.Compact(all)
	w.Given = given
}

// changes returns how often the remembered blocks of this node have changed.
func (m *mirror) changes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owned
}

// bridged stores whether a network may have a bridge on this host.
func (m *mirror) bridged(network string, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, found := slices.BinarySearch(m.cache.Bridges, network)
	switch {
	case is && !found:
		m.cache.Bridges = slices.Insert(m.cache.Bridges, i, network)
	case !is && found:
		m.cache.Bridges = slices.Delete(m.cache.Bridges, i, i+1)
		m.cache.Given = maps.Clone(m.cache.Given)
		delete(m.cache.Given, network)
	}
}
