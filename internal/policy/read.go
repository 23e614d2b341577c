// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// rules is a policy of either kind after it was checked. Here everything is decided that does
// not depend on pods.
type rules struct {
	name     string // "shop/web", or without a slash the name of a cluster's policy
	tier     Tier
	priority int32
	subject  selection
	sides    [2]*side // by Direction; nil: the policy says nothing about it
	problems []string
}

// side is what a policy says about one direction.
type side struct{ rules []rule }

// rule is one element of ingress or egress.
type rule struct {
	source  string // "ingress[0]"
	verdict Verdict
	peers   []peer
	ports   []portSpec // none: all traffic
}

// peer is one peer. The peer without any field is everybody.
type peer struct {
	pods   *selection
	nodes  *Selector
	ranges string // the name of a range set
	in     []Range
}

// selection selects pods: in one namespace, or in the namespaces of a selector.
type selection struct {
	namespace  string
	namespaces Selector
	pods       Selector
}

// String is also the name of the set of the identities that the selection matches.
func (s selection) String() string {
	switch {
	case s.namespace != "":
		return s.namespace + "{" + s.pods.String() + "}"
	case s.pods.Empty():
		return "namespaces{" + s.namespaces.String() + "}"
	}
	return "namespaces{" + s.namespaces.String() + "} pods{" + s.pods.String() + "}"
}

// inNamespace reports whether pods of a namespace can match. known is false if the labels of
// the namespace are not known; then only a selector of all namespaces matches.
func (s selection) inNamespace(name string, labels Labels, known bool) bool {
	if s.namespace != "" {
		return s.namespace == name
	}
	return s.namespaces.Empty() || known && s.namespaces.Matches(labels)
}

// These end the problem of a policy of each kind that is closed as a whole.
const (
	isolatesAll = "; the policy isolates its pods and allows nothing"
	deniesAll   = "; the policy denies its pods everything"
)

// readNetworkPolicy checks a NetworkPolicy.
func readNetworkPolicy(p *NetworkPolicy) rules {
	r := rules{name: p.Namespace + "/" + p.Name, tier: Namespaced, subject: selection{namespace: p.Namespace, pods: p.Spec.PodSelector}}
	err := r.readSides(p)
	if p.Broken != "" {
		err = errors.New(p.Broken)
	}
	if err == nil {
		return r
	}
	r.problems = []string{err.Error() + isolatesAll}
	if p.Spec.PodSelector.check() != nil {
		r.subject.pods = Selector{}
	}
	for d := range r.sides {
		r.sides[d] = nil
		if p.isolates(Direction(d)) {
			r.sides[d] = &side{}
		}
	}
	return r
}

// readSides reads both directions.
func (r *rules) readSides(p *NetworkPolicy) error {
	if err := p.Spec.PodSelector.check(); err != nil {
		return fmt.Errorf("podSelector: %w", err)
	}
	for _, t := range p.Spec.PolicyTypes {
		if t != "Ingress" && t != "Egress" {
			return fmt.Errorf("policyTypes: %q is not known", t)
		}
	}
	sides := [2]*side{{}, {}}
	for i, rule := range p.Spec.Ingress {
		if err := sides[Ingress].allow(p.Namespace, "ingress["+strconv.Itoa(i)+"]", rule.From, rule.Ports); err != nil {
			return err
		}
	}
	for i, rule := range p.Spec.Egress {
		if err := sides[Egress].allow(p.Namespace, "egress["+strconv.Itoa(i)+"]", rule.To, rule.Ports); err != nil {
			return err
		}
	}
	for d := range sides {
		if p.isolates(Direction(d)) {
			r.sides[d] = sides[d]
		}
	}
	return nil
}

// isolates reports whether the policy is for a direction. Without policyTypes it is for ingress,
// and for egress if it has such rules: the API server's default. A type that this program does not
// know counts for both directions.
func (p *NetworkPolicy) isolates(d Direction) bool {
	types := p.Spec.PolicyTypes
	if len(types) == 0 {
		return d == Ingress || len(p.Spec.Egress) > 0
	}
	return slices.ContainsFunc(types, func(t string) bool {
		return t == d.apiName() || t != "Ingress" && t != "Egress"
	})
}

// allow adds a rule of a NetworkPolicy.
func (s *side) allow(namespace, source string, peers []Peer, ports []RulePort) error {
	r := rule{source: source, verdict: Accept, peers: make([]peer, 0, max(1, len(peers))), ports: make([]portSpec, 0, len(ports))}
	if len(peers) == 0 {
		r.peers = append(r.peers, peer{})
	}
	for i, p := range peers {
		to, err := p.read(namespace)
		if err != nil {
			return fmt.Errorf("%s, peer %d: %w", source, i, err)
		}
		r.peers = append(r.peers, to)
	}
	for i, p := range ports {
		spec, err := p.read()
		if err != nil {
			return fmt.Errorf("%s.ports[%d]: %w", source, i, err)
		}
		r.ports = append(r.ports, spec)
	}
	s.rules = append(s.rules, r)
	return nil
}

// read checks a peer of a policy in a namespace. A peer without a known field comes from a later
// API, and must not match every peer.
func (p Peer) read(namespace string) (peer, error) {
	switch {
	case p.IPBlock != nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
		return peer{}, errors.New("ipBlock stands beside a selector")
	case p.IPBlock != nil:
		return p.IPBlock.peer()
	case p.PodSelector == nil && p.NamespaceSelector == nil:
		return peer{}, errors.New("it has no field that is known")
	}
	var s selection
	if p.PodSelector != nil {
		s.pods = *p.PodSelector
	}
	if p.NamespaceSelector != nil {
		s.namespaces = *p.NamespaceSelector
	} else {
		s.namespace = namespace
	}
	return peer{pods: &s}, errors.Join(s.namespaces.check(), s.pods.check())
}

// peer returns the peer with the ranges of an ipBlock. Its name is what it contains.
func (b IPBlock) peer() (peer, error) {
	in, err := b.ranges()
	if err != nil {
		return peer{}, err
	}
	whole, _ := parsePrefix(b.CIDR) // ranges has read it
	name := whole.String()
	var excepts []string
	for _, e := range b.Except {
		p, _ := parsePrefix(e)
		excepts = append(excepts, p.String())
	}
	slices.Sort(excepts)
	for i, e := range slices.Compact(excepts) {
		name += [...]string{" except ", ", "}[min(i, 1)] + e
	}
	return peer{ranges: name, in: in}, nil
}
