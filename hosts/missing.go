// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/hosts/store"
)

// missing holds the objects that this host knows but that the store has lost with its data. An
// object leaves missing in three cases: the store has it again, the store has another one in its
// place, or the watch reports its deletion. An object that cannot be read never counts as deleted
// (docs/adr/0039).
type missing struct {
	Networks  []store.Network `json:"networks,omitempty"`
	Nodes     []store.Node    `json:"nodes,omitempty"`
	Blocks    []store.Block   `json:"blocks,omitempty"`
	Endpoints []store.Entry   `json:"endpoints,omitempty"` // kept only for rebuildTime
}

// rebuildTime is the time in which the hosts write their own data again to a store that lost it.
// After that, this host drops what only the other hosts can restore: the names of their
// containers, and their sessions.
const rebuildTime = 10 * time.Minute

// replace takes over a new reading of the whole store. If the reading does not follow the last
// known revision, objects that it lacks count as missing, not as deleted.
func (m *mirror) replace(r *reading) {
	m.mu.Lock()
	if m.synced {
		m.merge()
	}
	if !m.follows(r) {
		w := &m.cache
		w.Missing = missing{w.Networks, w.Nodes, w.Blocks, w.Endpoints}
		w.Doubted, m.back = time.Now(), nil
	}
	m.tables, m.cache.Heard, m.cache.Seen, m.synced, m.updated = r.tables, r.at[last], r.seen, true, time.Now()
	m.merge()
	m.mu.Unlock()
	m.changed()
}

// follows reports whether a reading is of the same store and not older. A world that an earlier
// release saved has no revision. Then the reading does not follow if it lacks this host and the
// saved world has it.
func (m *mirror) follows(r *reading) bool {
	if m.cache.Heard == "" {
		_, here := r.nodes[m.self]
		return here || !m.cache.has(m.self)
	}
	return r.at[last].Follows(m.cache.Heard)
}

// merge builds the world from the tables of the store and the missing objects.
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

// still returns the missing objects that the store still lacks. It leaves out this host's own
// objects, because this host writes them again.
func (m *mirror) still(w *world) (out missing) {
	sound := slices.DeleteFunc(slices.Clone(w.Networks), func(n store.Network) bool { return Check(&n) != nil })
	for _, n := range w.Missing.Networks {
		if _, there := m.networks[n.Name]; !there && apart(&n, sound) == nil {
			out.Networks = append(out.Networks, n)
		}
	}
	known := func(network string) bool { _, there := m.networks[network]; return there || out.has(network) }
	settled, present := time.Since(w.Doubted) >= rebuildTime, w.present()
	m.note(present)
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

// note stores since when the store has had each network and each present host again.
func (m *mirror) note(present map[string]bool) {
	before, now := m.back, time.Now()
	m.back = make(map[string]time.Time, len(present)+len(m.networks))
	add := func(key string) {
		m.back[key] = now
		if t, ok := before[key]; ok {
			m.back[key] = t
		}
	}
	for id := range present {
		add("host " + id)
	}
	for name := range m.networks {
		add("network " + name)
	}
}

// overlapped reports whether one of blocks belongs to the same network as b and overlaps it. A
// block wider than b does not count, because no host claims such a block.
func overlapped(blocks []store.Block, b store.Block) bool {
	return slices.ContainsFunc(blocks, func(o store.Block) bool {
		return o.Network == b.Network && o.Prefix.Overlaps(b.Prefix) && o.Prefix.Bits() >= b.Prefix.Bits()
	})
}

// moved reports whether the node that held b now holds another block of the same network,
// family and length.
func moved(blocks []store.Block, b store.Block) bool {
	return slices.ContainsFunc(blocks, func(o store.Block) bool {
		return o.Node == b.Node && o.Network == b.Network && o.Prefix.Addr().Is4() == b.Prefix.Addr().Is4() && o.Prefix.Bits() == b.Prefix.Bits()
	})
}

// waits reports whether the present node of a missing block is waiting for a free block. Then
// the missing block is not its own, because the node would have written its own block again.
// Otherwise two hosts could each believe that the block belongs to the other host, and both
// would wait for ever. The answer must come from a store that lost its data at least rebuildTime
// ago, and that has had the node and the network again as long: before, the node may have had no time to write.
func (m *mirror) waits(w *world, b store.Block) bool {
	n, there := m.networks[b.Network]
	i := slices.IndexFunc(n.Subnets, func(s netip.Prefix) bool { return fits(&n, s, b.Prefix) })
	young := func(since time.Time) bool { return m.updated.Sub(since) < rebuildTime }
	if !there || i < 0 || young(w.Doubted) || young(m.back["host "+b.Node]) || young(m.back["network "+b.Network]) {
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

// beside returns the blocks of a network that overlap no block in others.
func beside(blocks []store.Block, network string, others []store.Block) (out []store.Block) {
	for _, b := range blocks {
		if b.Network == network && !overlapped(others, b) {
			out = append(out, b)
		}
	}
	return out
}

// forget removes an object from missing after an event for it, because the store's state counts
// from then on.
func (m *missing) forget(object store.Object) {
	switch o := object.(type) {
	case store.Network:
		m.Networks = without(m.Networks, o)
	case store.Node:
		m.Nodes = without(m.Nodes, o)
	case store.Block:
		m.Blocks = without(m.Blocks, o)
	case store.Entry:
		m.Endpoints = without(m.Endpoints, o)
	}
}

// without returns a copy of the slice without the object. It copies because readers share the
// slice.
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

// lost returns an error that names what the store lacks, or nil.
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
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("it does not have %s, as if its data were lost: the agent continues with the last known state; create the networks again, and hosts keep their blocks", strings.Join(names, ", "))
}

// refuse returns an error if a network is missing. Then this host claims no new block of it: a
// user may have removed that network, or may create it again with other subnets.
func (m *missing) refuse(n *store.Network, subnet netip.Prefix) error {
	if !m.has(n.Name) {
		return nil
	}
	return fmt.Errorf("claim a block of %s: the store does not have the network: create it again", subnet)
}
