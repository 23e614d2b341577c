// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// Step is one part of a decision: the verdict for a pod in one direction, and the policy that gave
// it.
type Step struct {
	Verdict   Verdict
	Pod       string // of this node; empty if none is concerned
	Direction Direction
	Policy    string // the policy that decided, if one did
	Rule      string // its rule: "ingress[0]"
	Because   string
}

// String returns "egress of shop/web: accept, by rule egress[0] of networkpolicy shop/web".
func (s Step) String() string {
	if s.Pod == "" {
		return fmt.Sprintf("%s: %s", s.Verdict, s.Because)
	}
	return fmt.Sprintf("%s of %s: %s, %s", s.Direction, s.Pod, s.Verdict, s.Because)
}

// Reason is the steps of a decision. The last one decided.
type Reason []Step

// String returns one line for each step.
func (r Reason) String() string {
	lines := make([]string, len(r))
	for i, s := range r {
		lines[i] = s.String()
	}
	return strings.Join(lines, "\n")
}

// Allows decides on the first packet of a connection, with its addresses after destination NAT
// and before source NAT. For ICMP and ICMPv6, port is the type. Allows considers only policies that
// this node enforces: between pods of two nodes, both nodes must allow the packet.
func (p *Program) Allows(from, to netip.Addr, proto l4.Protocol, port uint16) (Verdict, Reason) {
	if discovery(proto, port) {
		return Accept, Reason{{Because: "neighbour discovery always passes"}}
	}
	sender, receiver := p.pod(from), p.pod(to)
	var reason Reason
	if sender != nil {
		reason = append(reason, p.judge(sender, Egress, to, Ports{proto, port, port}))
	}
	if receiver != nil && !reason.denied() {
		if slices.Contains(p.Node, from) {
			reason = append(reason, Step{Pod: receiver.Name, Because: "its node may always reach it"})
		} else {
			reason = append(reason, p.judge(receiver, Ingress, from, Ports{proto, port, port}))
		}
	}
	switch {
	case len(reason) == 0:
		return Accept, Reason{{Because: "neither end is a pod of this node"}}
	case reason.denied():
		return Deny, reason
	}
	return Accept, reason
}

func (r Reason) denied() bool { return len(r) > 0 && r[len(r)-1].Verdict == Deny }

// pod returns the pod of this node that has an address.
func (p *Program) pod(a netip.Addr) *LocalPod {
	for i := range p.Pods {
		if slices.Contains(p.Pods[i].Addresses, a) {
			return &p.Pods[i]
		}
	}
	return nil
}

// judge asks the chains of a pod in one direction. Packet has the protocol and the port.
func (p *Program) judge(pod *LocalPod, d Direction, other netip.Addr, packet Ports) Step {
	side := &pod.Sides[d]
	step := Step{Pod: pod.Name, Direction: d}
	passed := false // in this tier, by Pass
	for i, tier := 0, Admin; i < len(side.Chains); i++ {
		chain := p.chain(side.Chains[i])
		if chain.Tier != tier {
			tier, passed = chain.Tier, false
		}
		if side.Isolated && tier != Admin {
			if slices.Contains(pod.Addresses, other) {
				step.Because = "no NetworkPolicy keeps a pod from itself"
				return step
			}
			if tier == Baseline {
				break
			}
		}
		if r := p.firstMatch(chain, other, packet); r != nil && !passed {
			if passed = r.Verdict == Pass; !passed {
				return step.by(chain, r)
			}
		}
	}
	return step.byDefault(p, side)
}

// firstMatch returns the first rule of a chain that matches a packet.
func (p *Program) firstMatch(c *Chain, other netip.Addr, packet Ports) *Rule {
	for i := range c.Rules {
		if p.match(&c.Rules[i], other, packet) {
			return &c.Rules[i]
		}
	}
	return nil
}

func (p *Program) match(r *Rule, other netip.Addr, packet Ports) bool {
	if r.Set != "" {
		if _, in := slices.BinarySearch(p.set(r.Set).Members, p.identity(other)); !in {
			return false
		}
	}
	if r.RangeSet != "" && !contains(p.rangeSet(r.RangeSet).Ranges, other) {
		return false
	}
	return len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(in Ports) bool { return in.match(packet.Protocol, packet.First) })
}

// by completes a step that a rule decided.
func (s Step) by(c *Chain, r *Rule) Step {
	kind := KindClusterNetworkPolicy
	if c.Tier == Namespaced {
		kind = KindNetworkPolicy
	}
	s.Verdict, s.Policy, s.Rule = r.Verdict, c.Policy, r.Source
	s.Because = fmt.Sprintf("by rule %s of %s %s", r.Source, kind, c.Policy)
	return s
}

// byDefault completes a step that no rule decided.
func (s Step) byDefault(p *Program, side *Side) Step {
	var names []string
	for _, name := range side.Chains {
		if c := p.chain(name); c.Tier == Namespaced {
			names = append(names, c.Policy)
		}
	}
	switch {
	case side.Unknown:
		s.Verdict, s.Because = Deny, "its labels or those of its namespace are not known yet, and a policy may select or deny it"
	case side.Isolated:
		s.Verdict, s.Policy = Deny, strings.Join(names, ", ")
		s.Because = "no rule allows it, and it is isolated by networkpolicy " + s.Policy
	default:
		s.Because = "no policy denies it"
	}
	return s
}
