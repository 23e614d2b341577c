// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/store"
)

// world is what a host knows of all hosts: the store's tables, or what they last
// were while the store is away.
type world struct {
	Networks  []store.Network  `json:"networks"`
	Nodes     []store.Node     `json:"nodes"`
	Blocks    []store.Block    `json:"blocks"`
	Endpoints []store.Endpoint `json:"endpoints"`
	// Own are the blocks this node had last, by network: to ask for them first,
	// and to notice when one became somebody else's.
	Own map[string][]netip.Prefix `json:"own"`
	// Bridges are the networks that may have a bridge here.
	Bridges []string `json:"bridges"`
	// Doubted is until when what is missing may only have been lost.
	Doubted time.Time `json:"doubted,omitzero"`
}

// blocksOf are the blocks of one network.
func (w *world) blocksOf(network string) (out []store.Block) {
	for _, b := range w.Blocks {
		if b.Network == network {
			out = append(out, b)
		}
	}
	return out
}

// network finds a network by its name.
func (w *world) network(name string) (n store.Network) {
	if i := slices.IndexFunc(w.Networks, func(n store.Network) bool { return n.Name == name }); i >= 0 {
		n = w.Networks[i]
	}
	return n
}

// node finds a node by its id.
func (w *world) node(id string) (store.Node, bool) {
	i := slices.IndexFunc(w.Nodes, func(n store.Node) bool { return n.ID == id })
	if i < 0 {
		return store.Node{}, false
	}
	return w.Nodes[i], true
}

func (w *world) has(id string) bool { _, ok := w.node(id); return ok }

// nodeName is what people call a node.
func (w *world) nodeName(id string) string {
	n, _ := w.node(id)
	return cmp.Or(n.Name, id)
}

// present says which nodes are there, by what hangs on their leases.
func (w *world) present() map[string]bool {
	out := map[string]bool{}
	for _, e := range w.Endpoints {
		if e.Network == presence {
			out[e.Node] = true
		}
	}
	return out
}

// presence is the network of the endpoints that say no more than that a node is
// there. No network of CNI can be called so.
const presence = "_present"

// mirror is the world as it follows the store. Its methods may be called by many
// goroutines.
type mirror struct {
	self  string // id of this node
	mu    sync.Mutex
	known bool // once there is anything to go by: the cache, or the store
	heard [4]bool
	cache world
	tables
	changed func()
	owned   int // how often what this node remembers of its blocks changed
}

// tables are the mirror's objects, by key.
type tables struct {
	networks  map[string]store.Network
	nodes     map[string]store.Node
	blocks    map[string]store.Block
	endpoints map[string]store.Endpoint
}

// snapshot is the world now. Known says whether it can be acted on at all, and
// synced whether the store itself has said so since this process began: what is
// missing in a world that is only remembered may be there.
func (m *mirror) snapshot() (w world, known, synced bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w = m.cache
	w.Own, w.Bridges = maps.Clone(m.cache.Own), slices.Clone(m.cache.Bridges)
	if synced = m.told() && !m.blank(); synced {
		w.Networks, w.Nodes, w.Blocks, w.Endpoints = sorted(m.networks), sorted(m.nodes), sorted(m.blocks), sorted(m.endpoints)
		m.rebuild(&w)
		m.cache = w
		w.Own, w.Bridges = maps.Clone(w.Own), slices.Clone(w.Bridges)
	}
	return w, m.known || synced, synced
}

// refresh sets in w what this host remembers of itself.
func (m *mirror) refresh(w *world) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.Own, w.Bridges = maps.Clone(m.cache.Own), slices.Clone(m.cache.Bridges)
}

// told says whether all tables were heard.
func (m *mirror) told() bool { return m.heard == [4]bool{true, true, true, true} }

// blank says whether the store has lost its data, or is another one: it knows of
// no network and not of this host, which knows better. It is not believed, or
// every host would take its networks down.
func (m *mirror) blank() bool {
	_, here := m.nodes[m.self]
	return len(m.networks) == 0 && !here && len(m.cache.Networks) > 0 && m.cache.has(m.self)
}

// lost is the error of a store that is blank.
func (m *mirror) lost() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.told() && m.blank() {
		return errBlank
	}
	return nil
}

// errBlank is told until somebody decides.
var errBlank = errors.New("it knows neither this host nor any network, as if its data were lost: " +
	"going on with what was known; create the networks again, and hosts take their old blocks")

// sorted is a table by key.
func sorted[T any](table map[string]T) []T {
	out := make([]T, 0, len(table))
	for _, key := range slices.Sorted(maps.Keys(table)) {
		out = append(out, table[key])
	}
	return out
}

// remember sets which blocks are this node's.
func (m *mirror) remember(network string, blocks []netip.Prefix) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Equal(m.cache.Own[network], blocks) {
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
}

// changes is how often what this node remembers of its blocks changed.
func (m *mirror) changes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owned
}

// bridged notes whether a network may have a bridge here.
func (m *mirror) bridged(network string, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, found := slices.BinarySearch(m.cache.Bridges, network)
	switch {
	case is && !found:
		m.cache.Bridges = slices.Insert(m.cache.Bridges, i, network)
	case !is && found:
		m.cache.Bridges = slices.Delete(m.cache.Bridges, i, i+1)
	}
}
