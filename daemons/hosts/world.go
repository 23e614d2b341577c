// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/nl"
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
	// Seen has the revisions of objects, which show whether the store went back.
	Seen witness `json:"seen,omitempty"`
	// Missing is the part of this state that the store has lost. Doubted is when this process found
	// the loss or, if that is later, when this process began. Clocks may jump, so the time in the
	// file shows only that there is a doubt.
	Missing missing   `json:"missing,omitzero"`
	Doubted time.Time `json:"doubted,omitzero"`
}

// blocksOf returns the blocks of one network.
func (w *world) blocksOf(network string) []store.Block { return blocksOf(w.Blocks, network) }

func blocksOf(all []store.Block, network string) (out []store.Block) {
	for _, b := range all {
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
func (w *world) present() map[string]bool { return presentOf(w.Endpoints) }

func presentOf(endpoints []store.Entry) map[string]bool {
	out := map[string]bool{}
	for _, e := range endpoints {
		if e.Network == presence {
			out[e.Node] = true
		}
	}
	return out
}

// lasting is the network of endpoints on long sessions. Such an endpoint ends when other hosts
// may take its node's blocks. Clocks of hosts may jump, so the store measures that time.
const lasting = "_lasting"

// ofHost reports whether an endpoint belongs to the host itself, and not to a container.
func ofHost(e *store.Entry) bool { return e.Network == presence || e.Network == lasting }

// presence is the network of the endpoints that only show that a node is present. No CNI
// network can have this name.
const presence = "_present"

// uplinkAddrs returns the underlay addresses of a host for which the user has configured none.
// For each family it returns the first global address of the link with the default route.
func uplinkAddrs(proc string) (out []netip.Addr, err error) {
	conn, err := nl.Host(proc)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		link, err := conn.DefaultLink(family, false) // a default route that rejects packets counts too, because the host uses it
		if err != nil {
			return nil, fmt.Errorf("find default route: %w", err)
		}
		if link == 0 {
			continue
		}
		addr, err := globalAddr(conn, link, family)
		if err != nil {
			return nil, err
		}
		if addr.IsValid() {
			out = append(out, addr)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no interface has a default route and an address: set the address where other hosts reach this one with --address")
	}
	return out, nil
}

// globalAddr returns the first address of a link that other hosts can use and that does not
// expire. It ignores link-local, temporary and deprecated addresses.
func globalAddr(conn *nl.Conn, index, family int) (netip.Addr, error) {
	addrs, err := conn.Addrs(index)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		addr := a.Prefix.Addr()
		if addr.Is4() == (family == netlink.FAMILY_V4) && addr.IsGlobalUnicast() && a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE) == 0 {
			return addr, nil
		}
	}
	return netip.Addr{}, nil
}

// begun reports whether this host holds, or held, a block of a subnet in the size that the
// network uses now. Then its containers may have addresses of that block.
func (w *world) begun(n *store.Network, subnet netip.Prefix, self string) bool {
	return slices.ContainsFunc(slices.Concat(w.Own[n.Name], w.Given[n.Name]), func(b netip.Prefix) bool { return fits(n, subnet, b) }) ||
		slices.ContainsFunc(w.Blocks, func(b store.Block) bool { return b.Network == n.Name && b.Node == self && fits(n, subnet, b.Prefix) })
}

// inTheWay returns an error if a network overlaps one of the host's addresses and is new on this
// host: the network's bridge would take packets that are for other hosts. If a network already
// has a block here, it continues. If the network was created again with other subnets, those
// count as new.
func (a *Agent) inTheWay(w *world, n *store.Network) error {
	fresh := slices.DeleteFunc(slices.Clone(n.Subnets), func(s netip.Prefix) bool { return w.begun(n, s, a.self) })
	if len(fresh) == 0 {
		return nil
	}
	b, err := openBridges(a.links, a.opts.Paths, w, a.opts.Log)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	defer b.close()
	addrs, err := b.conn.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("%w: list addresses: %w", errUnread, err)
	}
	for _, at := range addrs {
		p := nl.PrefixOf(at.IPNet)
		i := slices.IndexFunc(fresh, p.Masked().Overlaps)
		if i < 0 {
			continue
		}
		link, err := b.conn.LinkAt(at.LinkIndex)
		if err == nil && !ofWireGuard(link) && !(link.Attrs().Name == bridgeName(n.Name) && b.gave(n, link, p)) {
			return fmt.Errorf("subnet %s overlaps %s, an address of this host on %s: the host does not take part in this network", fresh[i], p, link.Attrs().Name)
		}
	}
	return nil
}
