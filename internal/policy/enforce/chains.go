// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// chains maps the names of chains to their rules.
type chains map[string][]line

// chainsOf returns the chains of a program. If no pod of the node has a policy, these are only the base
// chains, or with base false none.
func chainsOf(p *policy.Program, base bool) chains {
	c := compiler{byName: make(map[string]*target, len(p.Chains)), out: make(chains)}
	for i := range p.Chains {
		t := &target{&p.Chains[i], chainOf(&p.Chains[i])}
		c.byName[t.Name] = t
		c.out[t.name] = policyLines(t.Chain)
	}
	for i := range p.Pods {
		c.pod(&p.Pods[i])
	}
	if base || len(c.out) > 0 {
		c.out[chainEgress] = baseLines(policy.Egress)
		c.out[chainInput] = baseLines(policy.Egress)
		c.out[chainIngress] = baseLines(policy.Ingress)
		c.out.addTails()
		c.out.addEnded()
	}
	return c.out
}

// These are the ends of comments, after the name of a pod. They are for people: a comment may be cut.
const (
	itself   = " itself"
	isolates = " is isolated"

	closedByAdd = "closed by an ADD"
)

type compiler struct {
	byName map[string]*target
	out    chains
}

// target is a chain of a policy, with its name in the kernel.
type target struct {
	*policy.Chain
	name string
}

// baseVersion is the version of the base chains and the tails. The kernel's table has it beside the revision. If you change
// baseLines, tailLines or endedLines, increase it. An ADD replaces older base chains, and keeps newer ones.
const baseVersion = 5

// baseLines returns the rules of a base chain. What an ADD closed is dropped before the maps are asked,
// because they may still have a former pod with the same address. Packets from a link-local address are
// dropped: no policy judges them, so a pod could use them to reach its node whatever the policies say.
func baseLines(d policy.Direction) []line {
	source := d == policy.Egress
	closed := line{source: source, counter: countClosed, comment: closedByAdd}.drops(d, CauseClosed)
	closed4, closed6 := closed, closed
	closed4.family, closed4.pods = 4, closedSet(d, 0)
	closed6.family, closed6.pods = 6, closedSet(d, 1)
	lines := append([]line{{what: established, verdict: expr.VerdictAccept}}, discoveryLines()...)
	if source {
		lines = append(lines, line{what: linkLocal, counter: nft.CountForged, verdict: expr.VerdictGoto, chain: nft.ChainForged, comment: "an address of the link"})
	}
	return append(lines,
		closed4,
		closed6,
		line{what: dispatch, family: 4, source: source, chain: dispatchOf(d, 0)},
		line{what: dispatch, family: 6, source: source, chain: dispatchOf(d, 1)},
	)
}

// discoveryLines accept neighbour discovery and multicast listener discovery. Both are about one link. A
// router makes the hop limit smaller, and does not forward packets from addresses of a link. So these rules
// accept no routed packet, whatever its type.
func discoveryLines() []line {
	list := []line{{what: discovery, family: 6, ports: policy.Ports{First: 133, Last: 137}, verdict: expr.VerdictAccept}}
	for _, types := range []policy.Ports{{First: 130, Last: 132}, {First: 143, Last: 143}} {
		l := line{what: listening, family: 6, source: true, ports: types, verdict: expr.VerdictAccept}
		without := l
		without.addr = netip.IPv6Unspecified() // while the kernel looks for a duplicate of its address
		list = append(list, l, without)
	}
	return list
}

func chainOf(c *policy.Chain) string { return kindPolicy[c.Direction] + hash(c.Name) }

// policyLines returns the rules of a policy in one direction.
func policyLines(c *policy.Chain) (lines []line) {
	for i := range c.Rules {
		lines = append(lines, ruleLines(c, &c.Rules[i])...)
	}
	return lines
}

// ruleLines returns the rules of nftables for one rule: one for each range of ports, or for
// all ranges of a protocol if there are many, and for each family if it looks at the other end.
func ruleLines(c *policy.Chain, r *policy.Rule) (lines []line) {
	l := line{source: c.Direction == policy.Ingress, comment: c.Policy + " " + r.Source}
	l.decides(c, r.Verdict)
	for _, ports := range portsOfLines(r.Ports) {
		l.ports, l.portSet = ports.Ports, ports.set()
		if r.Set == "" && r.RangeSet == "" {
			lines = append(lines, l)
			continue
		}
		for family := range families {
			lines = append(lines, l.among(family, r))
		}
	}
	return lines
}

// among limits a line to a rule's peers of one family.
func (l line) among(family int, r *policy.Rule) line {
	l.family = [2]int8{4, 6}[family]
	if r.Set != "" {
		l.pods = ofFamily(kindPods, family, r.Set)
	}
	if r.RangeSet != "" {
		l.nets = ofFamily(kindNets, family, r.RangeSet)
	}
	return l
}

// decides sets the verdict of a rule, and the counter if it denies. After Pass in the tier Admin, the
// chain of the pod goes on with the next tier; no tier follows Baseline.
func (l *line) decides(c *policy.Chain, v policy.Verdict) {
	switch {
	case v == policy.Deny:
		*l = l.drops(c.Direction, CauseDenied)
		l.counter = chainOf(c)
	case v == policy.Pass && c.Tier == policy.Admin:
		l.verdict = expr.VerdictReturn
	default:
		l.verdict = expr.VerdictAccept
	}
}

// pod adds the chains of a pod of this node.
func (c compiler) pod(p *policy.LocalPod) {
	if !policed(p) {
		return
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		side := &p.Sides[d]
		lines := make([]line, 0, len(p.Addresses)+2*len(side.Chains)+2)
		if selects(p.Sides[1-d]) {
			lines = append(lines,
				line{what: midstream, comment: "not the first packet, and no known connection"}.drops(d, CauseMidstream),
				line{what: answering, verdict: expr.VerdictJump, chain: endedChain(d), comment: "an answer in a flow that a policy ended?"})
		}
		c.out[kindPod[d]+hash(p.Name)] = c.appendSide(lines, p, d)
	}
}

// policed reports whether a policy selects a pod.
func policed(p *policy.LocalPod) bool { return slices.ContainsFunc(p.Sides[:], selects) }

// selects reports whether a policy selects a pod in one direction.
func selects(s policy.Side) bool { return s.Isolated || len(s.Chains) > 0 }

// anyPoliced reports whether a policy selects a pod of this node.
func anyPoliced(p *policy.Program) bool {
	return slices.ContainsFunc(p.Pods, func(pod policy.LocalPod) bool { return policed(&pod) })
}

// appendSelf accepts packets of a pod that come back to it through a Service: NetworkPolicies do not judge
// them, and those of the cluster do.
func appendSelf(lines []line, p *policy.LocalPod, d policy.Direction) []line {
	for _, a := range p.Addresses {
		lines = append(lines, line{
			family: [2]int8{4, 6}[familyOf(a)], addr: a, source: d == policy.Ingress,
			verdict: expr.VerdictAccept, comment: p.Name + itself,
		})
	}
	return lines
}

// appendSide adds the jumps to the chains of one direction, and what follows them.
func (c compiler) appendSide(lines []line, p *policy.LocalPod, d policy.Direction) []line {
	side := &p.Sides[d]
	var tiers [3][]*target
	for _, name := range side.Chains {
		if t := c.byName[name]; t != nil {
			tiers[t.Tier] = append(tiers[t.Tier], t)
		}
	}
	lines = c.appendAdmin(lines, p, d, tiers[policy.Admin])
	if side.Isolated && !side.Unknown {
		lines = appendSelf(lines, p, d)
	}
	lines = appendJumps(lines, tiers[policy.Namespaced])
	if side.Isolated {
		return appendIsolation(lines, p, d, tiers[policy.Namespaced])
	}
	return appendJumps(lines, tiers[policy.Baseline])
}

// appendAdmin adds the jumps of the tier Admin. Pass ends the whole tier. So if a policy that is not the
// last says Pass, the tier gets a chain of its own, from which Pass returns.
func (c compiler) appendAdmin(lines []line, p *policy.LocalPod, d policy.Direction, tier []*target) []line {
	if len(tier) == 0 || !slices.ContainsFunc(tier[:len(tier)-1], passes) {
		return appendJumps(lines, tier)
	}
	name := kindAdmin[d] + hash(p.Name)
	for i, t := range tier {
		if i < len(tier)-1 && passes(t) {
			c.out[name] = append(c.out[name], policyLines(t.Chain)...)
		} else {
			c.out[name] = appendJumps(c.out[name], tier[i:i+1])
		}
	}
	return append(lines, line{verdict: expr.VerdictJump, chain: name, comment: "tier Admin"})
}

func passes(t *target) bool {
	return slices.ContainsFunc(t.Rules, func(r policy.Rule) bool { return r.Verdict == policy.Pass })
}

func appendJumps(lines []line, list []*target) []line {
	for _, t := range list {
		lines = append(lines, line{verdict: expr.VerdictJump, chain: t.name, comment: t.Policy})
	}
	return lines
}

// appendIsolation drops packets that no rule allowed, and counts them for each policy that isolates the pod.
func appendIsolation(lines []line, p *policy.LocalPod, d policy.Direction, by []*target) []line {
	for _, t := range by {
		lines = append(lines, line{what: counting, counter: t.name})
	}
	drop := line{comment: p.Name + isolates}.drops(d, CauseIsolated)
	if len(by) == 0 {
		drop.counter = countUnknown
	}
	return append(lines, drop)
}
