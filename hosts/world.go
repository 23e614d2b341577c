// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"net/netip"
	"slices"
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
	// Given are the blocks this node ever had while a network may have had a bridge:
	// their first addresses on it are ours to take away. The map is replaced, never
	// changed.
	Given map[string][]netip.Prefix `json:"given,omitempty"`
	// Heard is how far the store was when it said all this.
	Heard store.Revision `json:"heard,omitempty"`
	// Missing is the part of all this that the store has lost, and Doubted when that
	// was found, or when this process began if that was before: what is on the disk
	// says only that there is a doubt, since clocks jump.
	Missing missing   `json:"missing,omitzero"`
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

// lasting is the network of the endpoints that go when their host may lose its
// blocks. They hang on a lease, so the store counts that time: clocks of hosts jump.
const lasting = "_lasting"

// ofHost says whether an endpoint is a host's own, and no container's.
func ofHost(e *store.Endpoint) bool { return e.Network == presence || e.Network == lasting }

// presence is the network of the endpoints that say no more than that a node is
// there. No network of CNI can be called so.
const presence = "_present"
