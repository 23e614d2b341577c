// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/hosts/store"
)

// world is what a host knows about all hosts: the tables of the store, or their last known
// content while the store cannot be reached.
type world struct {
	Networks  []store.Network `json:"networks"`
	Nodes     []store.Node    `json:"nodes"`
	Blocks    []store.Block   `json:"blocks"`
	Endpoints []store.Entry   `json:"endpoints"`
	// Own holds the last blocks of this node, by network. The node claims these blocks first,
	// and notices if another node holds one of them.
	Own map[string][]netip.Prefix `json:"own"`
	// Bridges lists the networks that may have a bridge on this host.
	Bridges []string `json:"bridges"`
	// Given holds, by network, every block that this node has had since the network may have
	// had a bridge here. If the bridge has the first address of such a block, we added it and
	// may remove it. The map is replaced, never changed.
	Given map[string][]netip.Prefix `json:"given,omitempty"`
	// Heard is the revision of the store from which this state was read.
	Heard store.Revision `json:"heard,omitempty"`
	// Missing is the part of this state that the store has lost. Doubted is when this was
	// found, or, if that is later, when this process began. The time in the file only shows
	// that there is a doubt, because clocks may jump.
	Missing missing   `json:"missing,omitzero"`
	Doubted time.Time `json:"doubted,omitzero"`
}

// blocksOf returns the blocks of one network.
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

// nodeName returns the name of a node, or its id if the name is not known.
func (w *world) nodeName(id string) string {
	n, _ := w.node(id)
	return cmp.Or(n.Name, id)
}

// present returns the nodes that have an endpoint in the network presence.
func (w *world) present() map[string]bool {
	out := map[string]bool{}
	for _, e := range w.Endpoints {
		if e.Network == presence {
			out[e.Node] = true
		}
	}
	return out
}

// lasting is the network of the endpoints that end when other hosts may take their node's
// blocks. They are on a session, so the store measures that time, because clocks of hosts may
// jump.
const lasting = "_lasting"

// ofHost reports whether an endpoint belongs to the host itself, and not to a container.
func ofHost(e *store.Entry) bool { return e.Network == presence || e.Network == lasting }

// presence is the network of the endpoints that only show that a node is present. No CNI
// network can have this name.
const presence = "_present"
