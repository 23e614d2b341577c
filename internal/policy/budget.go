// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// budget is the most that the policies of one namespace may need together, and each ClusterNetworkPolicy alone. Who
// may write policies in a namespace may else stop the policies of a whole node: the kernel's time for a program
// grows with the square of the number of its sets, and its memory with their elements.
//
// Loading 500 selectors takes 0.2 s of processor time here, 1,000 take 0.5 s, 2,000 1.7 s, 4,000 6.4 s and 8,000 25 s: the
// kernel looks for the set of each message in a list of all sets of the table, and each selector has two sets. So with
// 500, a change of another namespace waits less than a second on a machine of a fifth of the speed, too
// (TestBudgetLoadsInTime). Behind 5,000 rules it waits 0.6 s, and behind 20,000 ranges 0.8 s. Three million addresses are
// 75 selectors that match 20,000 pods of two addresses, 220 MB of the kernel's memory.
var budget = need{selectors: 500, rules: 5000, ranges: 20_000, addresses: 3_000_000}

// need is what policies ask of the kernel.
type need struct {
	selectors int // different ones of peers; a named port of egress counts once for each number that it has there
	rules     int // one for each peer of each rule; again for each number of a named port, or of those of ingress together
	ranges    int // of addresses in ipBlocks, after their exceptions, and of ports
	addresses int // of pods that the selectors match; one that two of them match counts twice
}

func (n need) plus(o need) need {
	return need{n.selectors + o.selectors, n.rules + o.rules, n.ranges + o.ranges, n.addresses + o.addresses}
}

// over says which limit of the budget is exceeded and what to do, or returns "".
func (n need) over() string {
	for _, l := range [...]struct {
		has, most    int
		what, advice string
	}{
		{n.selectors, budget.selectors, "different selectors of peers", "give the pods that they select a label in common"},
		{n.rules, budget.rules, "rules with a peer", "put the ports of rules with the same peers into one rule"},
		{n.ranges, budget.ranges, "ranges of addresses and ports", "write fewer and larger ranges"},
		{n.addresses, budget.addresses, "addresses of pods in the sets of selectors", "select fewer pods, or with fewer different selectors"},
	} {
		if l.has > l.most {
			return fmt.Sprintf("%d %s, and the limit is %d: %s", l.has, l.what, l.most, l.advice)
		}
	}
	return ""
}

// keepBudget closes the policies that exceed the budget. Of a namespace these are its largest.
func (c *compiler) keepBudget() {
	m := c.newMeter()
	for i := range c.cluster {
		m.keep(KindClusterNetworkPolicy+" ", "it needs ", c.cluster[i:i+1])
	}
	for name, list := range c.policies {
		m.keep(KindNetworkPolicy+" ", "with it, the policies of namespace "+name+" need at least ", list)
	}
}

// meter measures what policies need.
type meter struct {
	c         *compiler
	addresses map[Number]int    // of each identity
	numbers   map[string]int    // of each name of a port, in all pods
	pods      map[string][]*Pod // of each namespace
}

func (c *compiler) newMeter() *meter {
	m := &meter{c, make(map[Number]int), make(map[string]int), make(map[string][]*Pod)}
	for _, a := range c.out.Addresses {
		m.addresses[a.Identity]++
	}
	seen := make(map[Port]bool)
	for _, id := range c.out.Identities {
		for _, p := range id.Ports {
			if !seen[p] {
				seen[p] = true
				m.numbers[p.Name]++
			}
		}
	}
	for i := range c.state.Pods {
		p := &c.state.Pods[i]
		m.pods[p.Namespace] = append(m.pods[p.Namespace], p)
	}
	return m
}

// keep closes those policies of an owner that exceed its budget. It begins with the small ones, so the largest break.
func (m *meter) keep(kind, needs string, list []rules) {
	bound := make(map[*rules]need, len(list))
	var all need
	for i := range list {
		bound[&list[i]] = m.bound(&list[i])
		all = all.plus(bound[&list[i]])
	}
	if all.over() == "" {
		return
	}
	bySize := slices.SortedFunc(maps.Keys(bound), func(a, b *rules) int {
		x, y := bound[a], bound[b]
		return cmp.Or(x.selectors+x.rules+x.ranges-y.selectors-y.rules-y.ranges, strings.Compare(a.name, b.name))
	})
	used, over := bill{seen: make(map[string]bool)}, ""
	for _, r := range bySize {
		if over == "" {
			over = m.add(&used, r)
		}
		if over != "" {
			m.c.problem(kind+r.name, r.exceed(needs+over))
		}
	}
}

// exceed closes a policy in its directions, and says so.
func (r *rules) exceed(over string) string {
	closed, effect := &side{}, isolatesAll
	if r.tier != Namespaced {
		closed, effect = denyAll(), deniesAll
	}
	for d := range r.sides {
		if r.sides[d] != nil {
			r.sides[d] = closed
		}
	}
	return over + effect
}

// bound returns cheaply what a policy needs at most.
func (m *meter) bound(r *rules) (n need) {
	for d, s := range r.sides {
		if s == nil {
			continue
		}
		chains := 1
		if Direction(d) == Ingress && s.names() {
			chains = max(1, len(m.pods[r.subject.namespace]))
		}
		for _, rule := range s.rules {
			n = n.plus(m.boundRule(Direction(d), rule, chains))
		}
	}
	n.addresses = n.selectors * len(m.c.out.Addresses)
	return n
}

func (m *meter) boundRule(d Direction, r rule, chains int) (n need) {
	ways := 1
	for _, p := range r.ports {
		if d == Egress && p.name != "" {
			ways += 1 + m.numbers[p.name]
		}
	}
	n.rules, n.ranges = chains*ways*len(r.peers), len(r.ports)
	for _, p := range r.peers {
		n.ranges += len(p.in)
		if p.pods != nil || ways > 1 {
			n.selectors += ways
		}
	}
	return n
}

// names reports whether rules name ports.
func (s *side) names() bool {
	_, uses := s.resolve(&Pod{})
	return uses
}

// chains returns how many chains a policy needs for ingress: one for each set of numbers that the names of its ports
// have in the pods of its namespace.
func (m *meter) chains(r *rules) int {
	s := r.sides[Ingress]
	if !s.names() {
		return 1
	}
	seen := make(map[string]bool)
	for _, p := range m.pods[r.subject.namespace] {
		if r.subject.pods.Matches(p.Labels) {
			ports, _ := s.resolve(p)
			seen[portList(ports)] = true
		}
	}
	return max(1, len(seen))
}

// bill is what several policies need together. What they share counts once.
type bill struct {
	need
	seen map[string]bool // sets and range sets
}

// add adds a policy. It stops when the budget is exceeded, and then says how.
func (m *meter) add(b *bill, r *rules) string {
	for d, s := range r.sides {
		if s == nil {
			continue
		}
		chains := 1
		if Direction(d) == Ingress {
			chains = m.chains(r)
		}
		for _, rule := range s.rules {
			if over := m.addRule(b, Direction(d), rule, chains); over != "" {
				return over
			}
		}
	}
	return ""
}

func (m *meter) addRule(b *bill, d Direction, r rule, chains int) string {
	b.ranges += len(r.ports)
	for _, p := range joined(r.peers) {
		b.rules += chains
		b.once("ranges "+p.ranges, need{ranges: len(p.in)})
		m.addSet(b, p.pods, nil)
		for _, spec := range r.ports {
			if d == Egress && spec.name != "" && b.over() == "" {
				m.addNumbers(b, p.pods, spec)
			}
		}
		if over := b.over(); over != "" {
			return over
		}
	}
	return b.over()
}

// addNumbers adds a set for each number that a name has in the pods of a peer.
func (m *meter) addNumbers(b *bill, pods *selection, name portSpec) {
	if pods == nil {
		pods = &selection{}
	}
	b.rules++ // to look for the name
	for _, port := range m.c.numbersOf(name, pods) {
		b.rules++
		m.addSet(b, pods, &port)
	}
}

// addSet adds the set of a selection.
func (m *meter) addSet(b *bill, pods *selection, with *Port) {
	if pods == nil {
		return
	}
	name := setName(pods, with)
	if b.seen[name] {
		return
	}
	n := need{selectors: 1}
	for id := range m.c.matching(pods) {
		if (selected{name, pods, with}).port(id) {
			n.addresses += m.addresses[id.Number]
		}
	}
	b.once(name, n)
}

// once adds what an object needs if it is new.
func (b *bill) once(name string, n need) {
	if !b.seen[name] {
		b.seen[name] = true
		b.need = b.plus(n)
	}
}
