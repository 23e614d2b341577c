// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/store"
)

// missing is what a store that lost its data does not have, and this host knows
// of: it stays as it was until the store has it again, or something in its place,
// or is seen to remove it. An object is nowhere else because it could not be read
// (docs/adr/0039).
type missing struct {
	Networks  []store.Network  `json:"networks,omitempty"`
	Nodes     []store.Node     `json:"nodes,omitempty"`
	Blocks    []store.Block    `json:"blocks,omitempty"`
	Endpoints []store.Endpoint `json:"endpoints,omitempty"` // only for rebuildTime
}

// rebuildTime is how long hosts have for telling a store that lost its data of
// themselves, before what only they can know, names and who is there, goes.
const rebuildTime = 10 * time.Minute

// replace takes a whole world from the store. What is missing in one that does not
// follow what was heard before is not gone.
func (m *mirror) replace(r *reading) {
	m.mu.Lock()
	if m.heard {
		m.merge()
	}
	if !m.follows(r) {
		w := &m.cache
		w.Missing = missing{w.Networks, w.Nodes, w.Blocks, w.Endpoints}
		w.Doubted = time.Now()
	}
	m.tables, m.cache.Heard, m.heard, m.told = r.tables, r.at[last], true, time.Now()
	m.merge()
	m.mu.Unlock()
	m.changed()
}

// follows says whether a reading is the same store's, later. A world that was
// remembered by an earlier release does not say; then one that should have this
// host and does not is none.
func (m *mirror) follows(r *reading) bool {
	if m.cache.Heard == "" {
		_, here := r.nodes[m.self]
		return here || !m.cache.has(m.self)
	}
	return r.at[last].Follows(m.cache.Heard)
}

// merge makes the world of what the store has, and what is missing there.
func (m *mirror) merge() {
	w := &m.cache
	w.Networks, w.Nodes, w.Blocks, w.Endpoints = sorted(m.networks), sorted(m.nodes), sorted(m.blocks), sorted(m.endpoints)
	if w.Missing.none() {
		if time.Since(w.Doubted) >= m.doubt {
			w.Doubted = time.Time{}
		}
		return
	}
	w.Missing = m.still(w)
	w.Networks = append(w.Networks, w.Missing.Networks...)
	w.Nodes = slices.DeleteFunc(w.Nodes, func(n store.Node) bool { return w.Missing.node(n.ID) })
	w.Nodes = append(w.Nodes, w.Missing.Nodes...)
	w.Blocks = append(w.Blocks, w.Missing.Blocks...)
	w.Endpoints = append(w.Endpoints, w.Missing.Endpoints...)
}

// still is what is missing in the world of the store. Of its own this host
// remembers nothing here: it has to write that again.
func (m *mirror) still(w *world) (out missing) {
	sound := slices.DeleteFunc(slices.Clone(w.Networks), func(n store.Network) bool { return Check(&n) != nil })
	for _, n := range w.Missing.Networks {
		if _, there := m.networks[n.Name]; !there && apart(&n, sound) == nil {
			out.Networks = append(out.Networks, n)
		}
	}
	known := func(network string) bool { _, there := m.networks[network]; return there || out.has(network) }
	settled, present := time.Since(w.Doubted) >= rebuildTime, w.present()
	for _, b := range w.Missing.Blocks {
		if b.Node != m.self && known(b.Network) && !overlapped(w.Blocks, b) && !(settled && present[b.Node] && (moved(w.Blocks, b) || m.waits(w, b))) {
			out.Blocks = append(out.Blocks, b)
		}
	}
	for _, n := range w.Missing.Nodes {
		there, is := m.nodes[n.ID]
		newer := is && (!there.Seen.Before(n.Seen) || sameNode(there, n))
		if n.ID != m.self && !newer && (out.holds(n.ID) || holds(w.Blocks, n.ID)) {
			out.Nodes = append(out.Nodes, n)
		}
	}
	if settled {
		return out
	}
	for _, e := range w.Missing.Endpoints {
		if e.Network != presence && e.Node != m.self && known(e.Network) && !present[e.Node] {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	return out
}

// overlapped says whether a block of the same network is in the place of another.
// A wider one is no host's.
func overlapped(blocks []store.Block, b store.Block) bool {
	return slices.ContainsFunc(blocks, func(o store.Block) bool {
		return o.Network == b.Network && o.Prefix.Overlaps(b.Prefix) && o.Prefix.Bits() >= b.Prefix.Bits()
	})
}

// moved says whether the node of a block has another one in the network.
func moved(blocks []store.Block, b store.Block) bool {
	return slices.ContainsFunc(blocks, func(o store.Block) bool {
		return o.Node == b.Node && o.Network == b.Network && o.Prefix.Addr().Is4() == b.Prefix.Addr().Is4() && o.Prefix.Bits() == b.Prefix.Bits()
	})
}

// waits says whether the present node of a missing block waits for one, as there is
// no other: it would have written this one again if it were its own. Two hosts that
// take it for each other's would both wait for ever. What the store said when it had
// just lost its data does not count: that node may have had no time to write, and this
// host may be cut off since.
func (m *mirror) waits(w *world, b store.Block) bool {
	n, there := m.networks[b.Network]
	i := slices.IndexFunc(n.Subnets, func(s netip.Prefix) bool { return fits(&n, s, b.Prefix) })
	if !there || i < 0 || m.told.Sub(w.Doubted) < rebuildTime {
		return false
	}
	blocks := append(w.blocksOf(n.Name), beside(w.Missing.Blocks, n.Name, w.Blocks)...)
	_, free := freeBlock(n.Subnets[i], b.Prefix.Bits(), takenOf(&n, n.Subnets[i], blocks), "")
	return !free
}

func holds(blocks []store.Block, node string) bool {
	return slices.ContainsFunc(blocks, func(b store.Block) bool { return b.Node == node })
}

func (m *missing) holds(node string) bool { return holds(m.Blocks, node) }

func (m *missing) none() bool {
	return len(m.Networks)+len(m.Nodes)+len(m.Blocks)+len(m.Endpoints) == 0
}

func (m *missing) has(network string) bool {
	return slices.ContainsFunc(m.Networks, func(n store.Network) bool { return n.Name == network })
}

func (m *missing) node(id string) bool {
	return slices.ContainsFunc(m.Nodes, func(n store.Node) bool { return n.ID == id })
}

// beside are blocks of a network that overlap none of others.
func beside(blocks []store.Block, network string, others []store.Block) (out []store.Block) {
	for _, b := range blocks {
		if b.Network == network && !overlapped(others, b) {
			out = append(out, b)
		}
	}
	return out
}

// forget drops what an event of the store tells of: from now on the store knows.
func (m *missing) forget(object store.Object) {
	switch o := object.(type) {
	case store.Network:
		m.Networks = without(m.Networks, o)
	case store.Node:
		m.Nodes = without(m.Nodes, o)
	case store.Block:
		m.Blocks = without(m.Blocks, o)
	case store.Endpoint:
		m.Endpoints = without(m.Endpoints, o)
	}
}

// without is a copy, if there is anything to leave out: others read these slices.
func without[T store.Object](all []T, object T) (out []T) {
	key := object.Key()
	if !slices.ContainsFunc(all, func(o T) bool { return o.Key() == key }) {
		return all
	}
	for _, o := range all {
		if o.Key() != key {
			out = append(out, o)
		}
	}
	return out
}

// lost says what is missing in the store; nil when nothing is.
func (m *mirror) lost() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := m.cache.Missing
	var names []string
	for _, n := range gone.Networks {
		names = append(names, "network "+n.Name)
	}
	for _, n := range gone.Nodes {
		names = append(names, "host "+n.Name)
	}
	for _, b := range gone.Blocks {
		if !gone.node(b.Node) {
			names = append(names, "block "+b.Prefix.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	if more := len(names) - maxTold; more > 0 {
		names = append(names[:maxTold], fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("it does not have %s, as if its data were lost: going on with what was known; create the networks again, and hosts keep their blocks", strings.Join(names, ", "))
}

// refuse keeps a host from claiming anew of a network that the store does not have:
// it may have been removed, or come back with other subnets.
func (m *missing) refuse(n *store.Network, subnet netip.Prefix) error {
	if !m.has(n.Name) {
		return nil
	}
	return fmt.Errorf("claim a block of %s: the store does not have the network: create it again", subnet)
}
