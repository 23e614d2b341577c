// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
)

// certainty says whether a policy selects a pod.
type certainty int

const (
	no certainty = iota
	maybe
	yes
)

// local returns a pod of this node with what is enforced for it.
func (c *compiler) local(p *Pod) LocalPod {
	out := LocalPod{Name: p.path(), Addresses: c.owned[p]}
	for _, d := range []Direction{Ingress, Egress} {
		out.Sides[d] = c.side(p, d)
	}
	return out
}

// side returns the chains of the policies that select a pod, in the order of the tiers.
func (c *compiler) side(p *Pod, d Direction) (s Side) {
	baseline := 0
	for baseline < len(c.cluster) && c.cluster[baseline].tier == Admin {
		baseline++
	}
	for _, list := range [][]rules{c.cluster[:baseline], c.policies[p.Namespace], c.cluster[baseline:]} {
		for i := range list {
			switch r := &list[i]; c.selects(r, d, p) {
			case yes:
				s.Isolated = s.Isolated || r.tier == Namespaced
				s.Chains = append(s.Chains, c.chain(r, d, p))
			case maybe:
				s.Unknown = true
			}
		}
	}
	if s.Unknown {
		c.unknown(p, d)
		return Side{Isolated: true, Unknown: true}
	}
	return s
}

// selects reports whether a policy is for a pod in a direction.
func (c *compiler) selects(r *rules, d Direction, p *Pod) certainty {
	ns := c.namespace(p.Namespace)
	all := r.subject.pods.Empty()
	switch {
	case r.sides[d] == nil:
		return no
	case !r.subject.inNamespace(ns.name, ns.labels, ns.known):
		if r.subject.namespace == "" && !ns.known {
			return maybe
		}
		return no
	case p.Unknown && (!all || d == Ingress && r.sides[d].deniesByName()):
		return maybe
	case all || r.subject.pods.Matches(p.Labels):
		return yes
	}
	return no
}

// chain returns the name of a policy's chain, and makes the chain if it is the first to need it.
func (c *compiler) chain(r *rules, d Direction, p *Pod) string {
	name := d.String() + " " + r.name
	var ports []Port
	if d == Ingress {
		var uses bool
		if ports, uses = r.sides[d].resolve(p); uses {
			name += " with " + portList(ports)
		}
	}
	if !c.complete && c.first("chain", name) {
		made := Chain{Name: name, Policy: r.name, Tier: r.tier, Direction: d}
		for _, rule := range r.sides[d].rules {
			made.Rules = append(made.Rules, c.compileRule(rule, d, ports)...)
		}
		c.out.Chains = append(c.out.Chains, made)
	}
	return name
}

// first reports whether an object is asked for the first time.
func (c *compiler) first(kind, name string) bool {
	key := kind + " " + name
	was := c.made[key]
	c.made[key] = true
	return !was
}

// resolve returns those ports of a pod whose names the rules use, and reports whether they use any
// names.
func (s *side) resolve(p *Pod) (ports []Port, uses bool) {
	for _, r := range s.rules {
		for _, spec := range r.ports {
			if spec.name != "" {
				uses = true
				ports = append(ports, spec.among(p.Ports)...)
			}
		}
	}
	slices.SortFunc(ports, comparePorts)
	return slices.Compact(ports), uses
}

// deniesByName reports whether a rule that does not accept has a named port. If the pod's ports are
// not known, the chain would lack that rule, and allow too much.
func (s *side) deniesByName() bool {
	return slices.ContainsFunc(s.rules, func(r rule) bool {
		return r.verdict != Accept && slices.ContainsFunc(r.ports, func(p portSpec) bool { return p.name != "" })
	})
}

// among returns the ports that have the name, and the protocol if the rule has one.
func (s portSpec) among(ports []Port) (found []Port) {
	for _, p := range ports {
		if s.name == p.Name && (s.Protocol == 0 || s.Protocol == p.Protocol) {
			found = append(found, p)
		}
	}
	return found
}

func portList(ports []Port) string {
	if len(ports) == 0 {
		return "no port"
	}
	words := make([]string, len(ports))
	for i, p := range ports {
		words[i] = p.String()
	}
	return strings.Join(words, ", ")
}

// compileRule returns the rules of a chain for one rule of a policy: one for each peer, and for
// each number that a named port has at the other end. ports are the selected pod's.
func (c *compiler) compileRule(r rule, d Direction, ports []Port) (out []Rule) {
	var numbers []Ports
	var names []portSpec
	for _, p := range r.ports {
		switch {
		case p.name == "":
			numbers = append(numbers, p.Ports)
		case d == Egress:
			names = append(names, p)
		default:
			for _, port := range p.among(ports) {
				numbers = append(numbers, Ports{port.Protocol, port.Number, port.Number})
			}
		}
	}
	for _, to := range joined(r.peers) {
		one := Rule{Source: r.source, Verdict: r.verdict, RangeSet: c.rangeSet(to), Ports: slices.Clone(numbers)}
		if len(numbers) > 0 || len(r.ports) == 0 {
			one.Set = c.set(to.pods, nil)
			out = append(out, one)
		}
		out = append(out, c.namedPorts(one, to, names)...)
	}
	return out
}

// namedPorts returns a rule for each number that a name has in the pods of a peer. Only pods have
// named ports, so a name never matches an address that is not a pod's.
func (c *compiler) namedPorts(r Rule, to peer, names []portSpec) (out []Rule) {
	pods := to.pods
	if pods == nil {
		pods = &selection{}
	}
	for _, name := range names {
		for _, p := range c.numbersOf(name, pods) {
			r.Set, r.Ports = c.set(pods, &p), []Ports{{p.Protocol, p.Number, p.Number}}
			out = append(out, r)
		}
	}
	return out
}

// numbersOf returns the ports that a name means in the pods of a selection, sorted.
func (c *compiler) numbersOf(name portSpec, pods *selection) (ports []Port) {
	for id := range c.matching(pods) {
		ports = append(ports, name.among(id.Ports)...)
	}
	slices.SortFunc(ports, comparePorts)
	return slices.Compact(ports)
}

// matching iterates over the identities that a selection matches.
func (c *compiler) matching(s *selection) func(func(*Identity) bool) {
	return func(do func(*Identity) bool) {
		for _, ns := range c.namespaces {
			if !s.inNamespace(ns.name, ns.labels, ns.known) {
				continue
			}
			for _, id := range ns.identities {
				if s.pods.Matches(id.Labels) && !do(id) {
					return
				}
			}
		}
	}
}

// set returns the name of the set for a selection. If with is set, the set has only the pods with
// this port. It makes the set if it is the first to need it.
func (c *compiler) set(s *selection, with *Port) string {
	if s == nil {
		return ""
	}
	name := setName(s, with)
	if !c.first("set", name) {
		return name
	}
	made := Set{Name: name}
	of := selected{name, s, with}
	for id := range c.matching(s) {
		if of.port(id) {
			made.Members = append(made.Members, id.Number)
		}
	}
	slices.Sort(made.Members)
	c.out.Sets = append(c.out.Sets, made)
	c.selected = append(c.selected, of)
	return name
}

// setName names the set of the pods of a selection, or of those with a port.
func setName(s *selection, with *Port) string {
	if with == nil {
		return s.String()
	}
	return s.String() + " with " + with.String()
}

// rangeSet returns the name of the range set of a peer, and makes the set.
func (c *compiler) rangeSet(p peer) string {
	if p.nodes != nil {
		p.ranges, p.in = fmt.Sprintf("nodes{%s}", p.nodes), c.nodes(*p.nodes)
	}
	if p.ranges != "" && c.first("ranges", p.ranges) {
		c.out.RangeSets = append(c.out.RangeSets, RangeSet{p.ranges, p.in})
	}
	return p.ranges
}
