// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"reflect"
	"slices"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// Kind is a kind of objects.
type Kind int

// These are the kinds: of v1, networking.k8s.io/v1 and policy.networking.k8s.io/v1alpha2.
const (
	Pods Kind = iota
	Namespaces
	Nodes
	NetworkPolicies
	ClusterNetworkPolicies
	kinds // their number
)

// String returns the name of the API's resource, such as "networkpolicies".
func (k Kind) String() string {
	return [...]string{"pods", "namespaces", "nodes", "networkpolicies", "clusternetworkpolicies"}[k]
}

// newPods returns the table of pods. It keeps pods that have a network of their own and live. A pod of
// another node counts only by its addresses. A pod of this node counts before it has an address,
// because its ADD needs a decision, whose file is named by the pod's UID.
func newPods(node string, shared *sharing) *table[policy.Pod] {
	return &table[policy.Pod]{
		one:   "pod",
		key:   func(p *policy.Pod) key { return key{p.Namespace, p.Name} },
		equal: equalPods,
		hold:  shared.hold, release: shared.release,
		parse: func(text []byte) (p policy.Pod, keep bool, err error) {
			p, err = policy.ParsePod(text)
			mine := p.Node == node
			if !mine {
				p.UID = ""
			}
			return p, p.Enforced() && (mine || len(p.Addresses) > 0), err
		},
	}
}

// equalPods compares two pods that are kept. All phases of such pods count the same.
func equalPods(a, b *policy.Pod) bool {
	return a.UID == b.UID && a.Node == b.Node && a.Leaving == b.Leaving && a.Unknown == b.Unknown && a.Created.Equal(b.Created) &&
		slices.Equal(a.Labels, b.Labels) && slices.Equal(a.Ports, b.Ports) && slices.Equal(a.Addresses, b.Addresses)
}

// newNamespaces returns the table of namespaces. It does not keep a namespace whose labels cannot be
// read, so its pods are isolated if a policy may select them.
func newNamespaces() *table[policy.Namespace] {
	return &table[policy.Namespace]{
		one:   "namespace",
		key:   func(n *policy.Namespace) key { return key{clusterWide, n.Name} },
		equal: func(a, b *policy.Namespace) bool { return slices.Equal(a.Labels, b.Labels) },
		parse: func(text []byte) (n policy.Namespace, keep bool, err error) {
			n, err = policy.ParseNamespace(text)
			return n, err == nil, err
		},
	}
}

func newNodes() *table[policy.Node] {
	return &table[policy.Node]{
		one: "node",
		key: func(n *policy.Node) key { return key{clusterWide, n.Name} },
		equal: func(a, b *policy.Node) bool {
			return slices.Equal(a.Labels, b.Labels) && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Pods, b.Pods)
		},
		parse: func(text []byte) (n policy.Node, keep bool, err error) {
			n, err = policy.ParseNode(text)
			return n, true, err
		},
	}
}

// newNetworkPolicies returns the table of NetworkPolicies. A broken policy is no problem here, because
// policy.Compile closes and reports it.
func newNetworkPolicies() *table[policy.NetworkPolicy] {
	return &table[policy.NetworkPolicy]{
		one:   policy.KindNetworkPolicy,
		key:   func(p *policy.NetworkPolicy) key { return key{p.Namespace, p.Name} },
		equal: func(a, b *policy.NetworkPolicy) bool { return reflect.DeepEqual(a, b) },
		parse: func(text []byte) (p policy.NetworkPolicy, keep bool, err error) {
			if p, err = policy.ParseNetworkPolicy(text); p.Broken != "" {
				err = nil
			}
			return p, true, err
		},
	}
}

// newClusterPolicies returns the table of ClusterNetworkPolicies, with broken ones too.
func newClusterPolicies() *table[policy.ClusterNetworkPolicy] {
	return &table[policy.ClusterNetworkPolicy]{
		one:   policy.KindClusterNetworkPolicy,
		key:   func(p *policy.ClusterNetworkPolicy) key { return key{clusterWide, p.Name} },
		equal: func(a, b *policy.ClusterNetworkPolicy) bool { return reflect.DeepEqual(a, b) },
		parse: func(text []byte) (p policy.ClusterNetworkPolicy, keep bool, err error) {
			if p, err = policy.ParseClusterNetworkPolicy(text); p.Broken != "" {
				err = nil
			}
			return p, true, err
		},
	}
}
