// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package why implements `patchbay why`: whether a packet may pass the network policies of this node,
// and which policy and rule decides. It reads the rules that the kernel has, and compares them with
// the mirror, which has what an ADD enforces.
//
// A node judges the pods that run on it. So the answer about a packet between two nodes covers only
// one of two decisions, and says so.
package why

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
)

// Kind is what one end of a packet is.
type Kind string

// These are the kinds. An address may be a pod of another node or outside of the cluster.
const (
	Pod     Kind = "pod" // of this node
	Node    Kind = "node"
	World   Kind = "world"
	Address Kind = "address"
)

// End is one end of a packet.
type End struct {
	Word       string // as it was asked
	Kind       Kind
	Interfaces []Interface // of a pod; otherwise one without a network
}

// Interface is an attachment of a pod.
type Interface struct {
	Network string
	Pod     mirror.Pod
	Addrs   []netip.Addr
}

// Answer is what the policies of this node do with a packet.
type Answer struct {
	From     string        `json:"from"`
	To       string        `json:"to"`
	Port     string        `json:"port"` // "5432/tcp", "icmp", "any port"
	Verdict  Verdict       `json:"verdict"`
	Packets  []Packet      `json:"packets"`            // for each pair of addresses
	Services []Translation `json:"services,omitempty"` // of a packet to a Service
	Cautions []string      `json:"cautions,omitempty"`
}

// Verdict is a decision. It is Unknown if it depends on something that the question leaves open, or on
// a rule that was not understood. It is Mixed if the answer is known for each pair of addresses, and
// differs.
type Verdict string

// These are the verdicts.
const (
	Allowed Verdict = "allowed"
	Dropped Verdict = "dropped"
	Unknown Verdict = "unknown"
	Mixed   Verdict = "mixed"
)

func verdictOf(f eval.Fate) Verdict {
	switch f {
	case eval.Accepted:
		return Allowed
	case eval.Dropped:
		return Dropped
	}
	return Unknown
}

// Packet is a packet between two addresses. An address is empty if it may be any of its end.
type Packet struct {
	From    string  `json:"from,omitempty"`
	To      string  `json:"to,omitempty"`
	Verdict Verdict `json:"verdict"`
	Steps   []Step  `json:"steps"`
}

// Step is the decision about one direction.
type Step struct {
	Direction string    `json:"direction"` // "egress" or "ingress"
	Of        string    `json:"of"`        // the pod that is judged
	Verdict   Verdict   `json:"verdict"`
	Because   []Because `json:"because"` // several if the verdict is Unknown
	Asked     []string  `json:"asked,omitempty"`
}

// Because is one reason.
type Because struct {
	Verdict  Verdict  `json:"verdict"`
	Policies []string `json:"policies,omitempty"`
	Rule     string   `json:"rule,omitempty"`
	Text     string   `json:"text"`
}

// Host is the node that is asked.
type Host struct {
	FW    *nft.Conn
	Paths paths.Paths
	Own   []netip.Addr // the node's addresses

}

// Ask answers whether a packet from one end to a port of another may pass.
func (h Host) Ask(from, to End, target Target) (a *Answer, err error) {
	err = enforce.WithView(h.FW, func(v *enforce.View) error {
		q := &question{Host: h, view: v, from: from, to: to, target: target}
		a, err = q.answer()
		return err
	})
	return a, err
}

// question is one question to one View.
type question struct {
	Host
	view     *enforce.View
	from, to End
	target   Target
	cautions []string
}

func (q *question) answer() (*Answer, error) {
	a := &Answer{From: q.from.Word, To: q.to.Word, Port: q.target.String(), Packets: []Packet{}}
	if err := q.compare(); err != nil {
		return nil, err
	}
	for _, pair := range Pairs(q.from, q.to) {
		p, err := q.judge(pair[0], pair[1])
		if err != nil {
			return nil, err
		}
		a.Packets = append(a.Packets, p)
	}
	a.Verdict = together(a.Packets)
	if err := q.established(a); err != nil {
		return nil, err
	}
	if !q.view.Enforced() {
		q.caution("the kernel of this node has no network policies")
	}
	q.elsewhere()
	a.Cautions = q.cautions
	return a, nil
}

// together returns the verdict of all packets. One that is not known makes it Unknown.
func together(list []Packet) (v Verdict) {
	for i, p := range list {
		switch {
		case p.Verdict == Unknown:
			return Unknown
		case i > 0 && p.Verdict != v:
			v = Mixed
		default:
			v = p.Verdict
		}
	}
	return v
}

// Pairs returns the addresses between which a packet may go: of one family and, for two pods, of one
// network if they share any.
func Pairs(from, to End) (list [][2]netip.Addr) {
	shared := false
	for _, same := range []bool{true, false} {
		for _, f := range from.Interfaces {
			for _, t := range to.Interfaces {
				if (f.Network == t.Network) == same && !(shared && !same) {
					list = append(list, between(f.Addrs, t.Addrs)...)
				}
			}
		}
		shared = len(list) > 0
	}
	return list
}

// between pairs addresses of one family. An address that is not valid stands for any.
func between(from, to []netip.Addr) (list [][2]netip.Addr) {
	for _, f := range from {
		for _, t := range to {
			if !f.IsValid() || !t.IsValid() || f.Is4() == t.Is4() {
				list = append(list, [2]netip.Addr{f, t})
			}
		}
	}
	return list
}

// judge asks the kernel's rules about a packet.
func (q *question) judge(from, to netip.Addr) (p Packet, err error) {
	at := enforce.Packet{From: from, To: to}
	at.Protocol, at.Port = q.target.of(from.Is6() || to.Is6())
	switch {
	case q.from.Kind == Node:
		at.Route = enforce.FromNode
	case q.to.Kind == Node:
		at.Route = enforce.ToNode
	}
	list, err := q.view.Judge(at)
	if err != nil {
		return p, err
	}
	p = Packet{From: text(from), To: text(to), Verdict: verdictOf(enforce.FateOf(list)), Steps: []Step{}}
	for _, j := range list {
		if s, kind := q.step(j); kind == Pod || len(s.Asked) > 0 || s.Verdict != Allowed {
			p.Steps = append(p.Steps, s)
		}
	}
	if q.from.Kind == Node && len(list) == 0 {
		p.Steps = append(p.Steps, Step{"ingress", q.to.Word, Allowed, []Because{{Verdict: Allowed, Text: "its node may always reach a pod"}}, nil})
	}
	return p, nil
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// step returns a decision, and the kind of the end that is judged.
func (q *question) step(j enforce.Judgement) (Step, Kind) {
	of := q.from
	if j.Direction == policy.Ingress {
		of = q.to
	}
	s := Step{Direction: j.Direction.String(), Of: of.Word, Verdict: verdictOf(j.Fate), Asked: j.Asked}
	for _, r := range j.Reasons {
		s.Because = append(s.Because, Because{verdictOf(r.Fate), r.Policies, r.Rule, r.Text})
	}
	return s, of.Kind
}
