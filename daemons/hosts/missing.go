// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/internal/doubt"
)

// missing holds the objects that this host knows but that the store has lost with its data
// (daemons/internal/doubt). An object that cannot be read never counts as deleted (docs/adr/0039).
type missing struct {
	Networks  []store.Network `json:"networks,omitempty"`
	Nodes     []store.Node    `json:"nodes,omitempty"`
	Blocks    []store.Block   `json:"blocks,omitempty"`
	Endpoints []store.Entry   `json:"endpoints,omitempty"` // kept only for rebuildTime
}

// missing returns the missing objects of all tables.
func (m *mirror) missing() missing {
	return missing{
		doubt.Objects(m.networks.Missing()), doubt.Objects(m.nodes.Missing()), doubt.Objects(m.blocks.Missing()), doubt.Objects(m.endpoints.Missing()),
	}
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
	follows := m.follows(r)
	if !follows {
		m.cache.Doubted, m.back = time.Now(), nil
	}
	m.networks.Replace(r.networks, follows)
	m.nodes.Replace(r.nodes, follows)
	m.blocks.Replace(r.blocks, follows)
	m.endpoints.Replace(r.endpoints, follows)
	m.cache.Heard, m.cache.Seen, m.synced, m.updated = r.at[last], r.seen, true, time.Now()
	m.merge()
	m.mu.Unlock()
	m.changed()
}

// newerNode reports whether the store has an older record of a host than this host knows.
func newerNode(missing, there store.Node) bool {
	return there.Seen.Before(missing.Seen) && !sameNode(there, missing)
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

// merge builds the world from the objects of the store and the missing ones.
func (m *mirror) merge() {
	w := &m.cache
	if w.Missing = m.missing(); w.Missing.none() {
		if time.Since(w.Doubted) >= m.doubt {
			w.Doubted = time.Time{}
		}
	} else {
		m.settle()
		w.Missing = m.missing()
	}
	w.Networks, w.Nodes, w.Blocks, w.Endpoints = m.networks.All(), m.nodes.All(), m.blocks.All(), m.endpoints.All()
}

// settle drops the missing objects that no host needs, or that the store has replaced. It drops this
// host's own objects, too, because this host writes them again.
func (m *mirror) settle() {
	sound := slices.DeleteFunc(m.networks.Present(), func(n store.Network) bool { return Check(&n) != nil })
	m.networks.Drop(func(n store.Network) bool { return apart(&n, sound) != nil })
	known := func(network string) bool { _, is := m.networks.Get(network); return is }
	settled, present := time.Since(m.cache.Doubted) >= rebuildTime, presentOf(m.endpoints.Present())
	m.note(present)
	blocks := m.blocks.Present()
	m.blocks.Drop(func(b store.Block) bool {
		return b.Node == m.self || !known(b.Network) || overlapped(blocks, b) || settled && present[b.Node] && (moved(blocks, b) || m.waits(blocks, b))
	})
	lost := doubt.Objects(m.blocks.Missing())
	m.nodes.Drop(func(n store.Node) bool { return n.ID == m.self || !holds(lost, n.ID) && !holds(blocks, n.ID) })
	m.endpoints.Drop(func(e store.Entry) bool {
		return settled || e.Network == presence || e.Node == m.self || !known(e.Network) || present[e.Node]
	})
}

// note stores since when the store has had each network and each present host again.
func (m *mirror) note(present map[string]bool) {
	before, now := m.back, time.Now()
	m.back = make(map[string]time.Time, len(present))
	add := func(key string) {
		m.back[key] = now
		if t, ok := before[key]; ok {
			m.back[key] = t
		}
	}
	for id := range present {
		add("host " + id)
	}
	for _, n := range m.networks.Present() {
		add("network " + n.Name)
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
// would wait for ever. The answer must come from a store that lost its data at least rebuildTime ago, and has
// had the node and the network again for that long. Earlier, the node may have had no time to write.
func (m *mirror) waits(blocks []store.Block, b store.Block) bool {
	n, there := m.networks.GetPresent(b.Network)
	i := slices.IndexFunc(n.Subnets, func(s netip.Prefix) bool { return fits(&n, s, b.Prefix) })
	young := func(since time.Time) bool { return m.updated.Sub(since) < rebuildTime }
	if !there || i < 0 || young(m.cache.Doubted) || young(m.back["host "+b.Node]) || young(m.back["network "+b.Network]) {
		return false
	}
	all := append(blocksOf(blocks, n.Name), beside(doubt.Objects(m.blocks.Missing()), n.Name, blocks)...)
	_, free := freeBlock(n.Subnets[i], b.Prefix.Bits(), claimedBlocks(&n, n.Subnets[i], all), "")
	return !free
}

func holds(blocks []store.Block, node string) bool {
	return slices.ContainsFunc(blocks, func(b store.Block) bool { return b.Node == node })
}

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

// lost returns an error that names what the store lacks, or nil.
func (m *mirror) lost() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := m.missing()
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
