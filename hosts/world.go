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

// world is what a host knows of all hosts: the store's tables, or their last known content
// while the store is away.
type world struct {
	Networks  []store.Network  `json:"networks"`
	Nodes     []store.Node     `json:"nodes"`
	Blocks    []store.Block    `json:"blocks"`
	Endpoints []store.Endpoint `json:"endpoints"`
	// Own holds this node's last blocks, by network: the node claims them first, and
	// notices when another host holds one.
	Own map[string][]netip.Prefix `json:"own"`
	// Bridges lists the networks that may have a bridge on this host.
	Bridges []string `json:"bridges"`
	// Given holds, by network, every block of this node since the network may have had a
	// bridge. The first addresses of these blocks on the bridge are ours to remove. The map
	// is replaced, never changed.
	Given map[string][]netip.Prefix `json:"given,omitempty"`
	// Heard is the store's revision of this state.
	Heard store.Revision `json:"heard,omitempty"`
	// Missing is the part of this state that the store has lost. Doubted is when that was
	// found, or when this process began if that is later: the time on disk only shows that
	// there is a doubt, since clocks jump.
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

// nodeName returns a node's name, or its id.
func (w *world) nodeName(id string) string {
	n, _ := w.node(id)
	return cmp.Or(n.Name, id)
}

// present returns the nodes that have a presence endpoint.
func (w *world) present() map[string]bool {
	out := map[string]bool{}
	for _, e := range w.Endpoints {
		if e.Network == presence {
			out[e.Node] = true
		}
	}
	return out
}

// lasting is the network of endpoints that end when their host may lose its blocks. They
// are on a lease, so that the store measures that time: clocks of hosts jump.
const lasting = "_lasting"

// ofHost reports whether an endpoint is a host's own and not a container's.
func ofHost(e *store.Endpoint) bool { return e.Network == presence || e.Network == lasting }

// presence is the network of endpoints that only show that a node is present. Its name is
// invalid for a CNI network.
const presence = "_present"
