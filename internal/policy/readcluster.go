// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
)

// BrokenRule is the name of the only rule of a ClusterNetworkPolicy that needs too much, or whose tier, priority or
// subject cannot be understood. It denies everything.
const BrokenRule = "broken"

// readClusterPolicy checks a ClusterNetworkPolicy. As its API says, a rule that cannot be understood fails
// closed: a rule that would accept matches nothing, and any other rule denies everything in its direction. If
// that is the tier or the subject, the policy denies its pods everything.
func readClusterPolicy(p *ClusterNetworkPolicy) rules {
	r := rules{name: p.Name, priority: p.Spec.Priority}
	err := r.readTier(p)
	if p.Broken != "" {
		err = errors.New(p.Broken)
	}
	if err != nil {
		r.problems = []string{err.Error() + deniesAll}
		r.sides = [2]*side{denyAll(), denyAll()}
		return r
	}
	for i, in := range p.Spec.Ingress {
		peers := make([]ClusterEgressPeer, len(in.From))
		for j, from := range in.From {
			peers[j].PodPeer = from
		}
		r.add(Ingress, fmt.Sprintf("ingress[%d]", i), ClusterEgressRule{in.Name, in.Action, peers, in.Protocols, in.Broken})
	}
	for i, out := range p.Spec.Egress {
		r.add(Egress, fmt.Sprintf("egress[%d]", i), out)
	}
	return r
}

// denyAll returns the side of a policy that is closed as a whole.
func denyAll() *side {
	return &side{[]rule{{source: BrokenRule, verdict: Deny, peers: []peer{{}}}}}
}

// readTier reads the tier, the priority and the subject of a policy. If the subject cannot be
// read, it is every pod.
func (r *rules) readTier(p *ClusterNetworkPolicy) error {
	s, err := p.Spec.Subject.selection()
	if err == nil {
		r.subject = *s
	}
	switch p.Spec.Tier {
	case "Admin":
		r.tier = Admin
	case "Baseline":
		r.tier = Baseline
	default:
		return errors.Join(fmt.Errorf("tier %q is not known", p.Spec.Tier), err)
	}
	if err != nil {
		return fmt.Errorf("subject: %w", err)
	}
	return nil
}

// add adds a rule, or what replaces a rule that cannot be understood.
func (r *rules) add(d Direction, source string, from ClusterEgressRule) {
	if from.Name != "" {
		source += " " + from.Name
	}
	if r.sides[d] == nil {
		r.sides[d] = &side{}
	}
	made, err := from.read()
	made.source = source
	if err != nil {
		text := "the rule matches nothing"
		if from.Action != "Accept" {
			text, made.verdict, made.peers, made.ports = "the rule denies everything", Deny, []peer{{}}, nil
		}
		r.problems = append(r.problems, fmt.Sprintf("%s: %v; %s", source, err, text))
		if from.Action == "Accept" {
			return
		}
	}
	r.sides[d].rules = append(r.sides[d].rules, made)
}

// read checks a rule. Rules for ingress have the same parts.
func (r ClusterEgressRule) read() (rule, error) {
	verdict, err := action(r.Action)
	out := rule{verdict: verdict}
	if r.Broken != "" {
		return out, errors.New(r.Broken)
	}
	if len(r.To) == 0 {
		err = errors.Join(err, errors.New("it has no peers"))
	}
	for i, p := range r.To {
		peers, e := p.read()
		if e != nil {
			err = errors.Join(err, fmt.Errorf("peer %d: %w", i, e))
		}
		out.peers = append(out.peers, peers...)
	}
	for i, p := range r.Protocols {
		spec, e := p.read()
		if e != nil {
			err = errors.Join(err, fmt.Errorf("protocols[%d]: %w", i, e))
		}
		out.ports = append(out.ports, spec)
	}
	return out, oneLine(err)
}

// oneLine writes joined errors in one line.
func oneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

func action(name string) (Verdict, error) {
	switch name {
	case "Accept":
		return Accept, nil
	case "Deny":
		return Deny, nil
	case "Pass":
		return Pass, nil
	}
	return Deny, fmt.Errorf("action %q is not known", name)
}

// read returns one peer, or one for each network.
func (p ClusterEgressPeer) read() (peers []peer, err error) {
	set := 0
	for _, is := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, len(p.Networks) > 0, len(p.DomainNames) > 0} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return nil, fmt.Errorf("it has %d known fields, want 1", set)
	case len(p.DomainNames) > 0:
		return nil, errors.New("domainNames are not supported")
	case p.Nodes != nil:
		return []peer{{nodes: p.Nodes}}, p.Nodes.check()
	case len(p.Networks) == 0:
		s, err := p.selection()
		return []peer{{pods: s}}, err
	}
	for _, cidr := range p.Networks {
		one, err := IPBlock{CIDR: cidr}.peer()
		if err != nil {
			return nil, err
		}
		peers = append(peers, one)
	}
	return peers, nil
}

// selection returns the pods of a subject or a peer.
func (p PodPeer) selection() (*selection, error) {
	switch {
	case (p.Namespaces == nil) == (p.Pods == nil):
		return nil, errors.New("it needs either namespaces or pods")
	case p.Namespaces != nil:
		return &selection{namespaces: *p.Namespaces}, p.Namespaces.check()
	}
	s := selection{namespaces: p.Pods.NamespaceSelector, pods: p.Pods.PodSelector}
	return &s, errors.Join(s.namespaces.check(), s.pods.check())
}
