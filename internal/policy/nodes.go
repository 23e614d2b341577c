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
// keeps pods from a node would be useless if they could use another one. An address of a pod does not count as the
// node's.
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

// onLinks returns, sorted, the addresses by which a pod reaches its own node and no other: link-local addresses,
// which a node has on its links to pods, broadcast and multicast. A program of the node that listens at any address
// also receives broadcast and multicast.
func onLinks() (list []Range) {
	groups4, everybody := netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4), netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 32)
	groups6 := netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff}), 8)
	for _, p := range [...]netip.Prefix{groups4, everybody, prefix.LinkLocal(), groups6} {
		list = append(list, Range{p.Addr(), prefix.Last(p)})
	}
	return list
}

// nodes returns the addresses of nodes as ranges that do not overlap.
func (c *compiler) nodes(s Selector) (in []Range) {
	links := onLinks()
	for i := range c.state.Nodes {
		n := &c.state.Nodes[i]
		if !s.Matches(n.Labels) {
			continue
		}
		for _, a := range c.addressesOf(n) {
			if !contains(links, a) {
				in = append(in, Range{a, a})
			}
		}
		if n.Name == c.state.Node {
			in = append(in, links...)
		}
	}
	slices.SortFunc(in, func(a, b Range) int { return a.First.Compare(b.First) })
	return slices.Compact(in)
}
