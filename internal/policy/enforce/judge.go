// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Route says where a packet comes from and goes to, seen from the node.
type Route uint8

// These are the routes.
const (
	Forwarded Route = iota
	ToNode
	FromNode
)

func (r Route) hook() nftables.ChainHook {
	return [...]nftables.ChainHook{*nftables.ChainHookForward, *nftables.ChainHookInput, *nftables.ChainHookOutput}[r]
}

// Packet is the first packet of a connection, with its addresses after destination NAT and before
// source NAT.
type Packet struct {
	Route    Route
	From, To netip.Addr  // at most one is not valid: some address outside of the cluster
	Protocol l4.Protocol // 0: any, but not neighbour discovery
	Port     uint16      // of the destination, or the type of ICMP; 0: any
}

// Judgement is what one base chain decides about a packet. Fate has both bits if the decision depends
// on a field that Packet leaves open, or on a rule that was not understood.
type Judgement struct {
	Chain     string
	Direction policy.Direction
	Fate      eval.Fate
	Asked     []string // the policies whose rules the packet meets
	Reasons   []Reason // one if the fate is certain
}

// Reason is why a packet is allowed or denied.
type Reason struct {
	Fate     eval.Fate
	Policies []string
	Rule     string // "ingress[0]", if a rule of a policy decides
	Text     string
	Foreign  bool // another program's rule decides
}

// Judge returns what the kernel does with a packet: the decisions of the base chains that it meets,
// in order, up to the first that surely drops it.
func (v *View) Judge(p Packet) (list []Judgement, err error) {
	for _, base := range v.bases(p.Route.hook()) {
		path, err := eval.Through(v.table, base, v.traced(p))
		if err != nil {
			return nil, err
		}
		list = append(list, v.judgement(base, path))
		if path.Fate == eval.Dropped {
			break
		}
	}
	return list, nil
}

// FateOf returns what happens to a packet after all of these decisions.
func FateOf(list []Judgement) eval.Fate {
	fate := eval.Accepted
	for _, j := range list {
		if j.Fate == eval.Dropped {
			return eval.Dropped
		}
		fate |= j.Fate
	}
	return fate
}

func (v *View) traced(p Packet) eval.Packet {
	known := p.From
	if !known.IsValid() {
		known = p.To
	}
	out := eval.Packet{
		V6: known.Is6(), From: p.From, To: p.To, Protocol: uint8(p.Protocol), Port: p.Port, Outside: world{v},
		Without: append(nft.EndedSets(), nft.SetOwnSource), // no answer in a flow that ended, and the source address is not forged
	}
	if p.Protocol == l4.ICMPv6 && p.Port >= 133 && p.Port <= 137 {
		out.Hops = 255 // neighbour discovery is about a neighbour: no router has forwarded the packet
	}
	if p.Protocol == 0 {
		out.Ignores = ofDiscovery
	}
	return out
}

// ofDiscovery reports whether a rule accepts neighbour discovery, which always passes: a question about
// any protocol is not about it.
func ofDiscovery(r nft.Rule) bool {
	return slices.ContainsFunc(discoveryLines(), func(l line) bool { return r.Is(l.exprs()) })
}

// world is an address outside of the cluster. Only ranges may have it.
type world struct{ *View }

func (w world) Lacks(set string) bool { return nft.OfPolicies(set) && !isNets(set) }

// Differs reports whether an address is that of a pod of this node.
func (w world) Differs(a netip.Addr) bool {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if chain, err := w.chainFor(a, d); err == nil && chain != "" {
			return true
		}
	}
	return false
}

func (v *View) judgement(base nft.Chain, path eval.Path) Judgement {
	j := Judgement{Chain: base.Name, Direction: policy.Egress, Fate: path.Fate, Asked: v.asked(path)}
	if base.Name == chainIngress {
		j.Direction = policy.Ingress
	}
	var sure []Reason
	for i, s := range path.Steps {
		if s.Does == 0 {
			continue
		}
		r := v.reason(path.Steps[:i+1])
		if j.Reasons = append(j.Reasons, r); s.Sure {
			sure = append(sure, r)
		}
	}
	if path.Fate != eval.Accepted|eval.Dropped && len(sure) > 0 {
		j.Reasons = sure[:1]
	}
	if rest := path.Fate &^ fates(j.Reasons); rest != 0 {
		j.Reasons = append(j.Reasons, Reason{Fate: rest, Text: unjudged(base, j.Asked)})
	}
	return j
}

func fates(list []Reason) (f eval.Fate) {
	for _, r := range list {
		f |= r.Fate
	}
	return f
}

// unjudged says why a packet has its fate if no rule decides about it.
func unjudged(base nft.Chain, asked []string) string {
	switch {
	case base.Drops:
		return "chain " + base.Name + " drops by policy: another program changed it"
	case len(asked) > 0:
		return "no policy denies it"
	}
	return "no policy selects it"
}

// asked returns the policies whose chains a packet reaches or may reach.
func (v *View) asked(path eval.Path) (names []string) {
	for _, s := range path.Steps {
		var name string
		switch {
		case ofPolicy(s.To):
			name = v.policyIn(s.To, s.Comment())
		case ofAdmin(s.Chain) && (s.To == "" || isTail(s.To)):
			name, _, _ = strings.Cut(s.Comment(), " ")
		}
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// policyIn returns the policy of a chain to which a jump with this comment leads.
func (v *View) policyIn(chain, comment string) string {
	if name := v.names[chain]; name != "" {
		return name
	}
	return comment
}

func ofPolicy(chain string) bool {
	return strings.HasPrefix(chain, kindPolicy[0]) || strings.HasPrefix(chain, kindPolicy[1])
}

func ofPod(chain string) bool {
	return strings.HasPrefix(chain, kindPod[0]) || strings.HasPrefix(chain, kindPod[1])
}

func ofAdmin(chain string) bool {
	return strings.HasPrefix(chain, kindAdmin[0]) || strings.HasPrefix(chain, kindAdmin[1])
}
