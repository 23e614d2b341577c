// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// view implements names.View. Its index is always replaced as a whole.
type view struct {
	now atomic.Pointer[map[string]*index]
}

// index holds the names of the endpoints of one network.
type index struct {
	subnets []netip.Prefix
	addrs   map[string][]netip.Addr // by name, in lower case
	names   map[netip.Addr][]string
}

func (v *view) of(network string) *index {
	if all := v.now.Load(); all != nil {
		return (*all)[network]
	}
	return nil
}

// Addrs implements names.View.
func (v *view) Addrs(network, name string) ([]netip.Addr, bool) {
	if i := v.of(network); i != nil {
		addrs, ok := i.addrs[name]
		return addrs, ok
	}
	return nil, false
}

// Names implements names.View.
func (v *view) Names(network string, addr netip.Addr) []string {
	if i := v.of(network); i != nil {
		return i.names[addr]
	}
	return nil
}

// Contains implements names.View.
func (v *view) Contains(network string, addr netip.Addr) bool {
	i := v.of(network)
	return i != nil && slices.ContainsFunc(i.subnets, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// build builds the index. Other hosts' endpoints come from the store. This host's endpoints come
// from its containers, even those that the store does not have yet.
func (v *view) build(w *world, self string, here []container) {
	all := map[string]*index{}
	for _, n := range w.Networks {
		all[n.Name] = &index{n.Subnets, map[string][]netip.Addr{}, map[netip.Addr][]string{}}
	}
	blocks := map[[2]string][]netip.Prefix{}
	for _, b := range w.Blocks {
		at := [2]string{b.Network, b.Node}
		blocks[at] = append(blocks[at], b.Prefix)
	}
	for i := range w.Endpoints {
		if e := &w.Endpoints[i]; e.Node != self {
			all[e.Network].add(e, blocks[[2]string{e.Network, e.Node}])
		}
	}
	for i := range here {
		if e, ok := endpointOf(w, &here[i]); ok {
			all[e.Network].add(&e, w.network(e.Network).Subnets)
		}
	}
	v.now.Store(&all)
}

// add adds an endpoint with its addresses in the given ranges. An address in a block that another
// host holds now may belong to another container. An endpoint may be added twice, from the old
// session and from the next one.
func (i *index) add(e *store.Entry, within []netip.Prefix) {
	if i == nil {
		return // an endpoint of a removed network, or one that only shows presence
	}
	for _, name := range e.Names {
		name = strings.ToLower(name)
		for _, addr := range e.Addrs {
			if !slices.ContainsFunc(within, func(p netip.Prefix) bool { return p.Contains(addr) }) {
				continue
			}
			if !slices.Contains(i.names[addr], name) { // search the short list: a name may have thousands of addresses
				i.names[addr] = append(i.names[addr], name)
				i.addrs[name] = append(i.addrs[name], addr)
			}
		}
	}
}
