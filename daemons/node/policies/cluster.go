// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/patchbay-net/patchbay/daemons/internal/copies"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Cluster is the agent's copy of the API's objects. If one cannot be read, Problems has it.
type Cluster struct {
	*copies.Copies[Kind]
	node    string
	changed chan struct{} // has room for one signal

	shared *sharing

	mu              sync.Mutex
	pods            *table[policy.Pod]
	namespaces      *table[policy.Namespace]
	nodes           *table[policy.Node]
	policies        *table[policy.NetworkPolicy]
	clusterPolicies *table[policy.ClusterNetworkPolicy]
	all             [kinds]objects // the same
	attached        []Attached     // sorted
	local           []netip.Addr   // sorted
	defaults        *ownNamespace
}

// New returns the copy of a node's agent. It has no object, and each kind counts as lost.
func New(node string) *Cluster {
	shared := &sharing{texts: make(map[string]*text), workloads: make(map[digest]*workload)}
	c := &Cluster{
		node: node, changed: make(chan struct{}, 1), shared: shared,
		pods: newPods(node, shared), namespaces: newNamespaces(), nodes: newNodes(), policies: newNetworkPolicies(), clusterPolicies: newClusterPolicies(),
	}
	c.all = [kinds]objects{c.pods, c.namespaces, c.nodes, c.policies, c.clusterPolicies}
	c.Copies = copies.New(kinds, copies.Reader[Kind]{
		One: func(k Kind, object []byte) (copies.Apply, error) { return c.all[k].read(object) },
		All: func(k Kind, list iter.Seq2[[]byte, error]) (copies.Apply, error) { return c.all[k].list(list) },
		Remove: func(k Kind, namespace, name string) bool {
			return c.all[k].remove(key{cmp.Or(namespace, clusterWide), name})
		},
	}, &c.mu, func() { resident.Signal(c.changed) })
	return c
}

// Empty reports whether no object of a kind is known.
func (c *Cluster) Empty(k Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[k].empty()
}

// Problems returns the objects that cannot be read, sorted. Broken policies are not among them: the
// program has them.
func (c *Cluster) Problems() (list []policy.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, objects := range c.all {
		list = append(list, objects.problems()...)
	}
	slices.SortFunc(list, func(a, b policy.Problem) int { return strings.Compare(a.Object, b.Object) })
	return list
}

// state writes the state into s. The tables do not change what they lend to it until giveBack. state does
// nothing, and complete is false, until each kind has been listed once.
func (c *Cluster) state(s *policy.State) (complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.Complete() {
		return false
	}
	s.Node, s.Local = c.node, c.local
	s.Pods = c.attach(c.pods.lend())
	s.Namespaces = c.namespaces.lend()
	s.Nodes = c.nodes.lend()
	s.Policies = c.policies.lend()
	s.ClusterPolicies = c.defaults.add(c.clusterPolicies.lend(), s.Namespaces)
	return true
}

// giveBack ends the use of a state.
func (c *Cluster) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, objects := range c.all {
		objects.giveBack()
	}
}
