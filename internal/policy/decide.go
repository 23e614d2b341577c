// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import "slices"

// Decider decides about single pods of this node. Like a pod in its ADD, they need no address and need not be in the
// state.
type Decider struct {
	State   *State
	Program *Program
	c       *compiler
	against []denied
}

// denied is a set, with the directions in which a rule denies the set's pods or passes them on.
type denied struct {
	selected
	sides [2]bool
}

// Decision is what a program has, or would have, for one pod.
type Decision struct {
	Sides    [2]Side  // by Direction
	Identity Number   // 0: none, because the labels are not known or another text has this hash
	Sets     []string // those sets of the program that match the pod

	// Against has the directions in which a rule for another pod of this node denies this pod, or may deny it. The rule
	// has no effect until the kernel knows this pod's address.
	Against [2]bool
}

// NewDecider compiles a state. The caller must not change the state while it uses the Decider.
func NewDecider(s *State) *Decider { return new(Sequence).Decider(s) }

// Sequence compiles states that follow one another. It keeps the order of the addresses, because to sort
// tens of thousands of them anew takes a fifth of the time of a program. If the pods have changed, the order
// is only a better start. Only one goroutine may use a Sequence at a time.
type Sequence struct {
	order []int32 // of addresses, as numbers in the order of the state
}

// Decider works like NewDecider.
func (q *Sequence) Decider(s *State) *Decider {
	c := compile(s, q)
	c.complete = true
	return &Decider{State: s, Program: c.out, c: c, against: c.against()}
}

// against returns the sets whose pods a rule denies or, with Pass, keeps a later rule from accepting. A chain for
// ingress judges packets that the pods of its sets send.
func (c *compiler) against() (list []denied) {
	sets := make(map[string][2]bool)
	for i := range c.out.Chains {
		for _, r := range c.out.Chains[i].Rules {
			if sides := sets[r.Set]; r.Set != "" && r.Verdict != Accept {
				sides[1-c.out.Chains[i].Direction] = true
				sets[r.Set] = sides
			}
		}
	}
	for _, s := range c.selected {
		if sides, any := sets[s.name]; any {
			list = append(list, denied{s, sides})
		}
	}
	return list
}

// sort returns the order of n addresses.
func (q *Sequence) sort(n int, compare func(a, b int32) int) []int32 {
	q.order = slices.DeleteFunc(q.order, func(i int32) bool { return int(i) >= n })
	for i := len(q.order); i < n; i++ {
		q.order = append(q.order, int32(i)) //nolint:gosec // a cluster has fewer pods
	}
	slices.SortFunc(q.order, compare)
	return q.order
}

// Decide returns the decision for a pod. If its labels are not known (Pod.Unknown), it is isolated
// if a policy may select it. The names of chains may be new to the program.
func (d *Decider) Decide(p *Pod) (out Decision) {
	for _, to := range []Direction{Ingress, Egress} {
		out.Sides[to] = d.c.side(p, to)
	}
	id := d.c.identify(p)
	out.Against = d.c.denied(d.against, p, id, maybe, yes)
	if id == nil {
		return out
	}
	out.Identity = d.number(id)
	for _, s := range d.c.selected {
		if d.c.mayMatch(s, p.Namespace, id) == yes {
			out.Sets = append(out.Sets, s.name)
		}
	}
	slices.Sort(out.Sets)
	return out
}

// denied returns the directions in which rules deny a set that matches the pod with one of these certainties.
func (c *compiler) denied(list []denied, p *Pod, id *Identity, how ...certainty) (sides [2]bool) {
	for _, s := range list {
		if slices.Contains(how, c.mayMatch(s.selected, p.Namespace, id)) {
			sides[Ingress], sides[Egress] = sides[Ingress] || s.sides[Ingress], sides[Egress] || s.sides[Egress]
		}
	}
	return sides
}

// isolateDenied isolates pods of this node whose labels, or whose namespace's labels, are not known, if a rule for
// another pod may deny or pass them. The rule itself cannot match them yet.
func (c *compiler) isolateDenied() {
	var list []denied
	for i, p := range c.locals {
		if !p.Unknown && c.namespace(p.Namespace).known {
			continue
		}
		if list == nil {
			list = c.against()
		}
		for d, denied := range c.denied(list, p, c.identify(p), maybe) {
			if side := &c.out.Pods[i].Sides[d]; denied && !side.Unknown {
				*side = Side{Isolated: true, Unknown: true}
				c.unknown(p, Direction(d))
			}
		}
	}
}

// mayMatch reports whether a set matches pods of a namespace with an identity. Without one, their labels are not known.
func (c *compiler) mayMatch(s selected, namespace string, id *Identity) certainty {
	ns := c.namespace(namespace)
	switch {
	case !ns.known && s.pods.namespace == "" && !s.pods.namespaces.Empty():
		return maybe
	case !s.pods.inNamespace(ns.name, ns.labels, ns.known):
		return no
	case id == nil:
		return maybe
	case s.pods.pods.Matches(id.Labels) && s.port(id):
		return yes
	}
	return no
}

// number returns the number of an identity. If no address has the identity yet, and its hash is the
// number of another one, the next program decides the number.
func (d *Decider) number(id *Identity) Number {
	if id.Number != 0 {
		return id.Number
	}
	n := hash(id.text())
	if slices.ContainsFunc(d.Program.Identities, func(o Identity) bool { return o.Number == n }) {
		return 0
	}
	return n
}

// selected has the pods and the port that a set of the program matches.
type selected struct {
	name string
	pods *selection
	with *Port // nil: pods with any ports
}

// port reports whether an identity has the port.
func (s selected) port(id *Identity) bool { return s.with == nil || slices.Contains(id.Ports, *s.with) }
