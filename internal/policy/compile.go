// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Compile returns the program of a node. It never fails: a policy that it cannot understand
// allows nothing and is listed in Problems.
func Compile(s *State) *Program { return compile(s, new(Sequence)).out }

func compile(s *State, q *Sequence) *compiler {
	c := &compiler{state: s, out: &Program{}, namespaces: make(map[string]*namespace), made: make(map[string]bool)}
	c.readPolicies()
	c.readNamespaces()
	c.readPods(q)
	c.keepBudget()
	c.nodeAddresses()
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Node == s.Node && p.Enforced() && len(c.owned[p]) > 0 {
			c.out.Pods = append(c.out.Pods, c.local(p))
			c.locals = append(c.locals, p)
		}
	}
	c.isolateDenied()
	c.out.sort()
	return c
}

// compiler holds what Compile has found so far.
type compiler struct {
	state    *State
	out      *Program
	cluster  []rules            // sorted: Admin, then Baseline
	policies map[string][]rules // of the tier Namespaced, by namespace

	keys  []string // labels at which policies look in every namespace
	ports []string // names of ports that egress rules use

	namespaces map[string]*namespace
	owned      map[*Pod][]netip.Addr // addresses of the pods of this node
	locals     []*Pod                // the pods behind out.Pods, in the same order until out.Pods is sorted
	made       map[string]bool       // sets, range sets and chains, by kind and name
	selected   []selected            // by set
	complete   bool                  // the program is not changed any more
}

// namespace is a namespace with the identities of its pods.
type namespace struct {
	name       string
	labels     Labels
	known      bool
	keys       []string // labels at which policies look in this namespace
	identities []*Identity
	byText     map[string]*Identity
}

// readPolicies checks all policies.
func (c *compiler) readPolicies() {
	c.policies = make(map[string][]rules)
	for i := range c.state.Policies {
		p := &c.state.Policies[i]
		c.policies[p.Namespace] = append(c.policies[p.Namespace], c.checked(KindNetworkPolicy+" ", readNetworkPolicy(p)))
	}
	for _, list := range c.policies {
		slices.SortFunc(list, func(a, b rules) int { return strings.Compare(a.name, b.name) })
	}
	for i := range c.state.ClusterPolicies {
		c.cluster = append(c.cluster, c.checked(KindClusterNetworkPolicy+" ", readClusterPolicy(&c.state.ClusterPolicies[i])))
	}
	slices.SortFunc(c.cluster, func(a, b rules) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.priority, b.priority), strings.Compare(a.name, b.name))
	})
}

func (c *compiler) checked(kind string, r rules) rules {
	for _, text := range r.problems {
		c.problem(kind+r.name, text)
	}
	return r
}

func (c *compiler) problem(object, text string) {
	c.out.Problems = append(c.out.Problems, Problem{object, text})
}

// readNamespaces collects the labels and names of ports that policies use. A rule with a selector
// of namespaces uses its labels in all namespaces, whatever labels these have now. So a change of
// a namespace's labels changes no identity.
func (c *compiler) readNamespaces() {
	for _, n := range c.state.Namespaces {
		ns := c.namespace(n.Name)
		ns.labels, ns.known = n.Labels, true
	}
	for _, r := range c.cluster {
		c.collectKeys(&r)
	}
	for _, list := range c.policies {
		for _, r := range list {
			c.collectKeys(&r)
		}
	}
	c.keys = unique(c.keys)
	c.ports = unique(c.ports)
	for _, ns := range c.namespaces {
		ns.keys = unique(append(ns.keys, c.keys...))
	}
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// namespace returns a namespace; its labels are not known if the state does not have it.
func (c *compiler) namespace(name string) *namespace {
	ns := c.namespaces[name]
	if ns == nil {
		ns = &namespace{name: name, byText: make(map[string]*Identity), keys: slices.Clone(c.keys)}
		c.namespaces[name] = ns
	}
	return ns
}

// collectKeys collects the labels and named ports that one policy needs.
func (c *compiler) collectKeys(r *rules) {
	for d, s := range r.sides {
		if s == nil {
			continue
		}
		for _, rule := range s.rules {
			c.collectPeerKeys(rule.peers)
			for _, p := range rule.ports {
				if p.name != "" && Direction(d) == Egress {
					c.ports = append(c.ports, p.name)
				}
			}
		}
	}
}

func (c *compiler) collectPeerKeys(peers []peer) {
	for _, p := range peers {
		switch {
		case p.pods == nil:
		case p.pods.namespace != "":
			ns := c.namespace(p.pods.namespace)
			ns.keys = append(ns.keys, p.pods.pods.keys()...)
		default:
			c.keys = append(c.keys, p.pods.pods.keys()...)
		}
	}
}

// sort sorts every list of a program.
func (p *Program) sort() {
	slices.SortFunc(p.Node, netip.Addr.Compare)
	p.Node = slices.Compact(p.Node)
	slices.SortFunc(p.Sets, func(a, b Set) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(p.RangeSets, func(a, b RangeSet) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(p.Chains, func(a, b Chain) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(p.Pods, func(a, b LocalPod) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(p.Problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Object, b.Object), strings.Compare(a.Text, b.Text))
	})
}

// unknown reports that a pod of this node is isolated because its labels are not known.
func (c *compiler) unknown(pod *Pod, d Direction) {
	if c.complete {
		return
	}
	c.problem("pod "+pod.path(), fmt.Sprintf("its labels or those of its namespace are not known, and a policy may select or deny it; it is isolated for %s", d))
}
