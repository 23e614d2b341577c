// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/patchbay-net/patchbay/daemons/internal/losses"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Cluster is the agent's copy of the API's objects. The calls of one kind must be in the order of the
// API's events. Calls of different kinds may run at the same time.
type Cluster struct {
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
	follows         *losses.Table
	attached        []Attached   // sorted
	local           []netip.Addr // sorted
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
	c.follows = losses.New(Pods, Namespaces, Nodes, NetworkPolicies, ClusterNetworkPolicies)
	return c
}

// Set stores an object that was added or changed, as the API serves it in JSON. If it cannot be read,
// Problems has it. Set returns an error only if it cannot read which object it is; then a change is not
// known, so the caller must list the kind again.
func (c *Cluster) Set(k Kind, object []byte) error {
	apply, err := c.all[k].read(object)
	if err != nil {
		return fmt.Errorf("read one of the %s: %w", k, err)
	}
	c.change(apply)
	return nil
}

// Delete removes an object that was deleted. The namespace of an object that is in none is "".
func (c *Cluster) Delete(k Kind, namespace, name string) {
	c.change(func() bool { return c.all[k].remove(key{cmp.Or(namespace, clusterWide), name}) })
}

// Replace stores a list of all objects of a kind, and removes all others. No state has a part of the
// list. If the list or the name of an object cannot be read, the former objects stay, and Replace
// returns an error. If the API server does not have the kind, its list is empty.
func (c *Cluster) Replace(k Kind, list iter.Seq2[[]byte, error]) error {
	apply, err := c.all[k].list(list)
	if err != nil {
		return fmt.Errorf("replace the %s: %w", k, err)
	}
	c.change(func() bool {
		first := c.follows.List(int(k))
		return apply() || first
	})
	return nil
}

func (c *Cluster) change(apply func() bool) {
	c.mu.Lock()
	changed := apply()
	c.mu.Unlock()
	if changed {
		resident.Signal(c.changed)
	}
}

// Report stores the result of a request for the objects of a kind. err is nil if they are followed
// again, so that no event was lost.
func (c *Cluster) Report(k Kind, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follows.Report(int(k), err)
}

// Losses returns the kinds that are not followed.
func (c *Cluster) Losses() []losses.Loss {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.follows.All()
}

// Listed reports whether a kind was listed.
func (c *Cluster) Listed(k Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.follows.Listed(int(k))
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
	if !c.follows.Complete() {
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
