// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// State is what the program of one node depends on. The order of its lists does not matter.
type State struct {
	Node            string // this node's name
	Nodes           []Node
	Namespaces      []Namespace
	Pods            []Pod // of all nodes
	Policies        []NetworkPolicy
	ClusterPolicies []ClusterNetworkPolicy

	Local []netip.Addr // this node's addresses that the API does not have, such as those of its bridges
}

// Node is a node of the cluster.
type Node struct {
	Name      string
	Labels    Labels
	Addresses []netip.Addr
	Pods      []netip.Prefix // podCIDRs
}

// Gateways returns the addresses that a node has for its pods: the first of each podCIDR is the source of what it
// sends into tunnels, and the second its pods' gateway.
func (n *Node) Gateways() (list []netip.Addr) {
	for _, p := range n.Pods {
		if !p.IsSingleIP() {
			list = append(list, p.Addr(), p.Addr().Next())
		}
	}
	return list
}

// Namespace is a namespace with its labels.
type Namespace struct {
	Name   string
	Labels Labels
}

// Pod is what policies see of a pod.
type Pod struct {
	Namespace, Name string
	UID             string // only of pods of this node, and only Decider's callers use it
	Node            string
	Labels          Labels
	Ports           []Port // with names; policies cannot see others
	Addresses       []netip.Addr
	Phase           string
	HostNetwork     bool
	Leaving         bool      // being deleted; its policies stay in force until it has finished
	Created         time.Time // decides which of two pods has an address

	// Unknown means that labels and ports are not known yet, as in the ADD of a new pod. Such a
	// pod is isolated if a policy may select it, or deny it as the other end, and no selector of a peer matches it.
	Unknown bool
}

// Port is a named port of a pod.
type Port struct {
	Name     string
	Protocol l4.Protocol
	Number   uint16
}

// String returns "http=8080/tcp".
func (p Port) String() string {
	return p.Name + "=" + strconv.Itoa(int(p.Number)) + "/" + p.Protocol.String()
}

func (p *Pod) path() string { return p.Namespace + "/" + p.Name }

// Enforced reports whether policies are for the pod: it has a network of its own and lives.
func (p *Pod) Enforced() bool {
	return !p.HostNetwork && p.Phase != "Succeeded" && p.Phase != "Failed"
}

// discovery reports whether an ICMPv6 type belongs to neighbour discovery (133 to 137) or to
// multicast listener discovery (130 to 132, 143). Without these packets a pod has no neighbours.
func discovery(proto l4.Protocol, kind uint16) bool {
	return proto == l4.ICMPv6 && (kind >= 130 && kind <= 137 || kind == 143)
}
