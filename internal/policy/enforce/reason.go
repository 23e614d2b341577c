// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// reason says why the last of these steps decides. A rule is recognised by its chain and by what it does. A rule
// of another program has no comment, or an unknown one. The comment, which may be cut, says what the rule is for.
func (v *View) reason(steps []eval.Step) Reason {
	steps = beforeTail(steps)
	s := steps[len(steps)-1]
	r := Reason{Fate: s.Does}
	comment := s.Comment()
	switch {
	case s.Not != "":
		r.Foreign, r.Text = true, fmt.Sprintf("%s, which %s: patchbay does not understand %s", s, whose(s), s.Not)
	case (ofPolicy(s.Chain) || ofAdmin(s.Chain)) && ofRule(comment):
		v.byRule(&r, s)
	case ofPod(s.Chain) && isolating(s.Rule) && ends(comment, isolates):
		v.byDefault(&r, steps)
	case ofPod(s.Chain) && toItself(s.Rule) && ends(comment, itself):
		r.Text = "no NetworkPolicy keeps a pod from itself"
	case isBase(s.Chain) && s.Does == eval.Dropped && comment == closedByAdd:
		r.Text = ClosedByAdd
	case isBase(s.Chain) && ofDiscovery(s.Rule):
		r.Text = "neighbour discovery always passes"
	case isBase(s.Chain) && s.Has("ct", "") && s.Does == eval.Accepted && comment == "":
		r.Text = "the connection exists"
	default:
		r.Foreign, r.Text = true, fmt.Sprintf("%s, which %s", s, whose(s))
	}
	return r
}

// isolating reports whether a rule of a pod's chain isolates the pod: the rule drops every packet that reaches
// it.
func isolating(r nft.Rule) bool {
	for _, drop := range []line{
		line{}.drops(policy.Ingress, CauseIsolated), line{}.drops(policy.Egress, CauseIsolated),
		{verdict: expr.VerdictDrop}, // an agent of an earlier release made it
	} {
		counted := drop
		counted.counter = countUnknown
		if r.Is(drop.exprs()) || r.Is(counted.exprs()) {
			return true
		}
	}
	return false
}

// beforeTail returns the steps up to the rule that sends a packet to a tail. This rule decides: the tail drops all
// packets.
func beforeTail(steps []eval.Step) []eval.Step {
	last := steps[len(steps)-1]
	if !isTail(last.Chain) || last.Does != eval.Dropped {
		return steps
	}
	for i := range steps {
		if steps[i].To == last.Chain {
			steps = slices.Clone(steps[:i+1])
			steps[i].Does = last.Does
			return steps
		}
	}
	return steps
}

// toItself reports whether a rule of a pod's chain accepts what comes back to the pod.
func toItself(r nft.Rule) bool {
	for _, e := range r.Exprs {
		a, ok := netip.AddrFromSlice(e.Value(unix.NFTA_CMP_DATA))
		if e.Name != "cmp" || !ok {
			continue
		}
		accept := line{family: [2]int8{4, 6}[familyOf(a)], addr: a, verdict: expr.VerdictAccept}
		other := accept
		other.source = true
		return r.Is(accept.exprs()) || r.Is(other.exprs())
	}
	return false
}

// ofRule reports whether a comment is that of a policy's rule: "shop/web ingress[0]", maybe cut.
func ofRule(comment string) bool {
	_, rule, _ := strings.Cut(comment, " ")
	return rule == policy.BrokenRule || strings.HasPrefix(rule, "ingress[") || strings.HasPrefix(rule, "egress[") || cut(comment)
}

// ends reports whether a comment has this end, which may be cut.
func ends(comment, end string) bool { return strings.HasSuffix(comment, end) || cut(comment) }

// cut reports whether a comment may be longer than the kernel's.
func cut(comment string) bool { return len(comment) > nft.MaxComment-utf8.UTFMax }

// whose describes a rule that is not ours.
func whose(s eval.Step) string {
	if c := s.Comment(); c != "" {
		return fmt.Sprintf("says %q", c)
	}
	return "another program made"
}

// byRule completes the reason for a rule of a policy, whose comment is "shop/web ingress[0]".
func (v *View) byRule(r *Reason, s eval.Step) {
	name, rule, _ := strings.Cut(s.Comment(), " ")
	if full := v.names[s.Chain]; full != "" {
		name = full
	}
	does := map[eval.Fate]string{eval.Accepted: "allows", eval.Dropped: "denies"}[s.Does]
	r.Policies, r.Rule = []string{name}, rule
	if rule = "rule " + rule; cut(s.Comment()) {
		r.Rule, rule = "", "a rule"
	}
	r.Text = fmt.Sprintf("%s of %s %s it", rule, Kind(name), does)
	if r.Rule == policy.BrokenRule {
		r.Text = Kind(name) + " denies everything, because it cannot be understood or needs too much"
	}
	if ports := v.portsOf(s.Rule); !s.Sure && ports != "" {
		r.Text += ", for " + ports
	}
}

// portsOf returns the protocol and the ports that a rule matches: "tcp 80", or "tcp 80, 443". It returns "" for
// all traffic.
func (v *View) portsOf(r nft.Rule) string {
	p := portsIn(r)
	if p.Protocol == 0 {
		return ""
	}
	for _, e := range r.Exprs {
		if e.Name == "lookup" && isPorts(e.Text(unix.NFTA_LOOKUP_SET)) {
			return p.String() + " " + v.portList(e.Text(unix.NFTA_LOOKUP_SET))
		}
	}
	return p.String()
}

// portList returns the first ports of a set.
func (v *View) portList(set string) string {
	const most = 8
	members, err := v.table.Members(set)
	if err != nil {
		return "ports in " + set
	}
	var words []string
	for _, m := range members {
		first, last, _ := portRange(m)
		words = append(words, numbers(first, last))
	}
	if more := len(words) - most; more > 0 {
		words = append(words[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

// portsIn returns the protocol and the ports with which a rule compares.
func portsIn(r nft.Rule) (p policy.Ports) {
	var loaded string // what the last expression loaded
	for _, e := range r.Exprs {
		value := e.Value(unix.NFTA_CMP_DATA)
		switch {
		case e.Name != "cmp":
			loaded = loads(e)
		case loaded == "protocol" && len(value) == 1:
			p.Protocol = l4.Protocol(value[0])
		case loaded == "port" && len(value) == 2:
			n := binary.BigEndian.Uint16(value)
			if op := e.Number(unix.NFTA_CMP_OP); op != unix.NFT_CMP_LTE {
				p.First = n
			}
			p.Last = n
		}
	}
	return p
}

func loads(e nft.Expr) string {
	switch {
	case e.Name == "meta" && e.Number(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO:
		return "protocol"
	case e.Name == "payload" && e.Number(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_TRANSPORT_HEADER && e.Number(unix.NFTA_PAYLOAD_OFFSET) == 2:
		return "port"
	}
	return ""
}

// byDefault completes the reason for a pod that is isolated. The rules before the last one count the
// packet for each policy that isolates the pod.
func (v *View) byDefault(r *Reason, steps []eval.Step) {
	chain := steps[len(steps)-1].Chain
	jumps := make(map[string]string) // policies by their chains
	for _, s := range steps {
		if s.Chain != chain {
			continue
		}
		if ofPolicy(s.To) {
			jumps[s.To] = v.policyIn(s.To, s.Comment())
		}
		if name := jumps[countedIn(s.Rule)]; name != "" {
			r.Policies = append(r.Policies, name)
		}
	}
	r.Text = IsolatedBy(r.Policies)
}

// IsolatedBy says why a packet is dropped that no rule allows, if these policies isolate the pod.
func IsolatedBy(policies []string) string {
	switch len(policies) {
	case 0:
		return "its labels, or those of its namespace, are not known yet, and a policy may select or deny it"
	case 1:
		return "no rule allows it, and it is isolated by networkpolicy " + policies[0]
	}
	return "no rule allows it, and it is isolated by the networkpolicies " + strings.Join(policies, ", ")
}

// ClosedByAdd says why a packet to or from a pod that an ADD closed is dropped.
const ClosedByAdd = "its ADD closed it, because a policy selects it, and the agent has not loaded its policies yet"

// countedIn returns the counter of a rule.
func countedIn(r nft.Rule) string {
	for _, e := range r.Exprs {
		if e.Name == "objref" {
			return e.Text(unix.NFTA_OBJREF_IMM_NAME)
		}
	}
	return ""
}

// Kind names a policy with its kind, which its name tells: no object of the API has a colon in its
// name. The agent's own defaults do, such as "own-namespace:shop".
func Kind(name string) string {
	switch {
	case strings.Contains(name, "/"):
		return policy.KindNetworkPolicy + " " + name
	case strings.Contains(name, ":"):
		return "the agent's default " + name
	}
	return policy.KindClusterNetworkPolicy + " " + name
}
