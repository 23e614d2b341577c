// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/prefix"
)

// nodeAddresses lists the addresses of this node.
func (c *compiler) nodeAddresses() {
	for i := range c.state.Nodes {
		if n := &c.state.Nodes[i]; n.Name == c.state.Node {
			c.out.Node = append(c.out.Node, c.addressesOf(n)...)
		}
	}
}

// addressesOf returns all addresses by which pods reach a node. The API knows only some of them, and a policy that
// keeps pods from a node would be worth nothing if they could use another one. What a pod has is the pod's.
func (c *compiler) addressesOf(n *Node) []netip.Addr {
	list := slices.Concat(n.Addresses, n.Gateways())
	if n.Name == c.state.Node {
		list = append(list, c.state.Local...)
	}
	for i, a := range list {
		list[i] = a.Unmap()
	}
	known := len(n.Addresses)
	return append(list[:known:known], slices.DeleteFunc(list[known:], func(a netip.Addr) bool { return c.out.identity(a) != 0 })...)
}

// onLinks returns the addresses that nodes have on their links to pods. A pod sees only those of its own node.
func onLinks() Range {
	p := prefix.LinkLocal()
	return Range{p.Addr(), prefix.Last(p)}
}

// nodes returns the addresses of nodes as ranges that do not overlap.
func (c *compiler) nodes(s Selector) (in []Range) {
	for i := range c.state.Nodes {
		n := &c.state.Nodes[i]
		if !s.Matches(n.Labels) {
			continue
		}
		for _, a := range c.addressesOf(n) {
			if !prefix.IsLinkLocal(a) {
				in = append(in, Range{a, a})
			}
		}
		if n.Name == c.state.Node {
			in = append(in, onLinks())
		}
	}
	slices.SortFunc(in, func(a, b Range) int { return a.First.Compare(b.First) })
	return slices.Compact(in)
}
