// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

// These values distinguish the pods' mesh from the mesh of `patchbayd hosts` on the same node.
const (
	Device     = "patchbay-pods"
	WireDevice = "patchbay-podswg"
	VNI        = 0x706f // "po"
	Protocol   = netstate.PodsProtocol
)

// Settings are the node's settings.
type Settings struct {
	Node      string         // its name in the cluster
	Cluster   []netip.Prefix // the addresses of all pods; they do not overlap
	Transport mesh.Transport
	Port      uint16 // UDP, of the tunnel; 0: the default

	Key      mesh.Key // this node's public key, with the transport wireguard
	WirePort uint16   // UDP, of WireGuard on all nodes; 0: the default

	Exempt []netip.Prefix // where packets of pods keep their address, besides Cluster

	KeepPorts bool // masqueraded packets keep their source port if they can

	Containers podnet.Containers
}

// Mesh returns the settings of this node's mesh, without the values from Node objects.
func (s Settings) Mesh() mesh.Self {
	self := mesh.Self{
		Name: podnet.Name, Device: Device, VNI: VNI, Protocol: Protocol, ID: s.Node, Port: s.Port,
		WireDevice: WireDevice, WirePort: s.WirePort, AnyPort: !s.KeepPorts,
	}
	for _, p := range s.Cluster {
		self.Subnets = append(self.Subnets, mesh.Subnet{Network: podnet.Name, Prefix: p, Encrypted: s.Transport == mesh.WireGuard})
	}
	return self
}

// Plan is the desired state of the node.
type Plan struct {
	Ready    bool // the node has an address and podCIDRs; if false, only Problems is valid
	Self     mesh.Self
	Peers    []mesh.Peer
	Network  podnet.Network // without an MTU
	Problems []Problem
}

// Make computes the plan. Its result does not depend on the order of the Nodes.
func Make(s Settings, nodes []Node) *Plan {
	m := &maker{Settings: s, plan: &Plan{Self: s.Mesh()}, keys: map[mesh.Key]string{s.Key: s.Node}}
	nodes = slices.Clone(nodes)
	order.Stable(nodes, m.before)
	if !slices.ContainsFunc(nodes, func(n Node) bool { return n.Name == s.Node }) {
		m.problem(NoNode, "the API server has no Node %s: is --node-name right, and is the kubelet registered?", []string{s.Node}, s.Node)
	}
	for _, n := range nodes {
		m.missing = n.Missing
		m.node(n)
	}
	m.missing = false
	for _, n := range nodes {
		m.former(n)
	}
	return m.plan
}

// maker makes one plan.
type maker struct {
	Settings
	plan   *Plan
	placed []placed
	keys   map[mesh.Key]string // WireGuard key -> name of its Node

	missing bool // the API server does not have the Node that node looks at
}

// placed is a block with its Node.
type placed struct {
	block netip.Prefix
	node  string
}

// before decides which of two Nodes gets a block that both have. The agent's own Node comes first,
// because its pods do not need the mesh. Then an existing Node comes before a missing Node or one
// that is being deleted. Then the older Node comes first, because it may have pods already. So the
// agents of all other nodes decide alike. The own Node loses its priority when it is registered again
// with other blocks. Its pods then have addresses of the former blocks, and need the routes to the
// other Node's pods.
func (m *maker) before(a, b Node) int {
	own := func(n Node) bool { return n.Name == m.Node && len(n.Former) == 0 }
	return cmp.Or(
		first(own(a), own(b)),
		first(!a.Missing, !b.Missing), first(!a.Leaving, !b.Leaving),
		cmp.Compare(a.Created, b.Created), strings.Compare(a.Name, b.Name))
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (m *maker) node(n Node) {
	blocks, underlay := m.blocks(n), n.underlay()
	about := []string{n.Name}
	for _, what := range n.Withheld {
		m.problem(Withheld, "Node %s has no %s any more: those that it had stay in use; a Node that is deleted and registered again gets new ones", about, n.Name, what)
	}
	if len(underlay) == 0 {
		m.problem(NoAddress, "Node %s has no address of type InternalIP: set the kubelet's --node-ip", about, n.Name)
	}
	key, keyed := m.key(n)
	switch {
	case len(blocks) == 0 || len(underlay) == 0:
	case n.Name == m.Node:
		m.plan.Ready = true
		m.plan.Self.Underlay, m.plan.Self.Blocks, m.plan.Self.Sources = underlay, blocks, sources(blocks)
		m.plan.Self.Exempt = widest(append(slices.Clone(m.Cluster), m.Exempt...))
		m.plan.Network = podnet.Network{Cluster: m.Cluster, Node: blocks, Containers: m.Containers, Encrypted: m.Transport == mesh.WireGuard}
	case keyed:
		m.plan.Peers = append(m.plan.Peers, mesh.Peer{ID: n.Name, Name: n.Name, Underlay: underlay, Blocks: blocks, Transport: m.Transport, Key: key})
	}
}

// widest leaves out prefixes that lie inside another prefix of the list.
func widest(list []netip.Prefix) (out []netip.Prefix) {
	for i, p := range list {
		if !slices.ContainsFunc(list[:i], func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) }) &&
			!slices.ContainsFunc(list[i+1:], func(o netip.Prefix) bool { return o.Bits() < p.Bits() && o.Contains(p.Addr()) }) {
			out = append(out, p)
		}
	}
	return out
}

// sources returns the first address of the first block of each family, which no pod gets. These are
// the source of this node's own packets into tunnels, so that answers take the tunnel too. Answers
// to the node's own address would not: the network between the nodes would drop them as spoofed.
func sources(blocks []netip.Prefix) (list []netip.Addr) {
	for _, b := range blocks {
		if a := b.Addr(); !b.IsSingleIP() && !slices.ContainsFunc(list, func(have netip.Addr) bool { return have.Is4() == a.Is4() }) {
			list = append(list, a)
		}
	}
	return list
}

// blocks returns those podCIDRs of a Node that are valid and that no other Node has.
func (m *maker) blocks(n Node) (list []netip.Prefix) {
	about := []string{n.Name}
	if len(n.Pods) == 0 {
		m.problem(NoPodCIDR, "Node %s has no podCIDR yet: the controller manager gives it one with --allocate-node-cidrs and --cluster-cidr", about, n.Name)
	}
	for _, text := range n.Pods {
		p, err := block(text)
		if err != nil {
			m.problem(BadPodCIDR, "Node %s: %v: delete the Node and let the kubelet register it again", about, n.Name, err)
			continue
		}
		if !m.inCluster(p) {
			m.problem(OutsideCluster, "Node %s: podCIDR %s is in no --cluster-cidr of the agent, %v: give the agent the controller manager's", about, n.Name, p, m.Cluster)
			continue
		}
		if i := slices.IndexFunc(m.placed, func(c placed) bool { return c.block.Overlaps(p) }); i >= 0 {
			other := m.placed[i]
			m.problem(Overlap, "Node %s: podCIDR %s overlaps %s of Node %s, which keeps it: delete one of the Nodes and let its kubelet register it again",
				[]string{n.Name, other.node}, n.Name, p, other.block, other.node)
			continue
		}
		m.placed = append(m.placed, placed{p, n.Name})
		list = append(list, p)
	}
	return list
}

// inCluster reports whether one of the cluster's networks contains a prefix.
func (m *maker) inCluster(p netip.Prefix) bool {
	return slices.ContainsFunc(m.Cluster, func(c netip.Prefix) bool { return c.Contains(p.Addr()) && c.Bits() <= p.Bits() })
}

// former adds the podCIDRs that a Node had before it was registered again, if no Node has them now.
// So the pods that run there keep their network until they are deleted.
func (m *maker) former(n Node) {
	blocks := &m.plan.Self.Blocks
	if n.Name != m.Node {
		i := slices.IndexFunc(m.plan.Peers, func(p mesh.Peer) bool { return p.ID == n.Name })
		if i < 0 {
			return
		}
		blocks = &m.plan.Peers[i].Blocks
	}
	for _, b := range valid(n.Former) {
		if m.inCluster(b) && len(*blocks) > 0 && !slices.ContainsFunc(m.placed, func(c placed) bool { return c.block.Overlaps(b) }) {
			m.placed = append(m.placed, placed{b, n.Name})
			*blocks = append(slices.Clip(*blocks), b)
		}
	}
}

// problem notes a problem. It leaves out problems of a Node that the API server does not have, because the
// agents forget that Node soon.
func (m *maker) problem(reason Reason, format string, about []string, args ...any) {
	if m.missing {
		return
	}
	m.plan.Problems = append(m.plan.Problems, Problem{Reason: reason, Nodes: about, Text: fmt.Sprintf(format, args...)})
}
