// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package eval

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// If one table accepts a packet, another table or a later chain may still drop it. So a survey
// looks for rules that drop, and walks through the chains in the order of the containers'
// traffic. It does not report a rule that only may drop, because most programs drop some packets.

// survey follows all traffic of a network through a table.
type survey struct {
	*knowledge
	table *nft.Table
	Traffic
	begin, answer *knowledge // the same traffic, as far as it begins connections or answers

	maybe   bool   // an earlier rule may have accepted some of the traffic
	most    bool   // an earlier rule may have accepted all traffic, not only packets of some kind
	answers bool   // an earlier rule has accepted answers
	at      string // the rule that ended the walk, such as "rule 1 of chain FORWARD"
	doubt   string // the first rule that may drop but whose conditions cannot be evaluated
	begun   bool   // the walk ended for traffic that begins a connection
	replies bool   // the walk follows answers
}

func newSurvey(t *nft.Table, traffic Traffic) *survey {
	k := traffic.knowledge(t)
	return &survey{knowledge: k, table: t, Traffic: traffic, begin: k.during(stateNew), answer: k.during(stateEstablished)}
}

// chain returns what a chain surely does with the traffic; goesOn is its end.
func (s *survey) chain(name string, depth int) Fate {
	for i, r := range s.table.Rules[name] {
		for _, b := range s.branches(r) {
			if b.is == No || depth > mostJumps {
				continue
			}
			f, ends := s.follow(b, depth)
			if s.at == "" && f != goesOn {
				s.at = nameOf(i+1, name)
			}
			if begun := b.begins && f == Dropped && !s.replies; ends && (b.is == Yes || begun) {
				s.begun = s.begun || b.is != Yes
				return f
			}
			s.note(b, f)
			s.at = ""
		}
	}
	return goesOn
}

// branch is what a rule does with some of the traffic.
type branch struct {
	choice
	begins  bool // surely with a connection's first packet
	answers bool // with answers, but not with a connection's first packet
}

// branches returns what a rule may do: one branch for its verdict, or one for each element of a
// verdict map.
func (s *survey) branches(r nft.Rule) (list []branch) {
	o := s.meet(r)
	for _, c := range o.choices {
		c.match = o.and(c.match)
		b := branch{choice: c}
		if c.why&ofState != 0 {
			first, later := s.begin.meets(r, c.element), s.answer.meets(r, c.element)
			b.begins, b.answers = first == Yes, first == No && later != No
		}
		list = append(list, b)
	}
	return list
}

// meets reports whether packets meet a rule, and have one of the elements of its map.
func (k *knowledge) meets(r nft.Rule, element int) Answer {
	o := k.meet(r)
	for _, c := range o.choices {
		if c.element == element {
			return o.and(c.match).is
		}
	}
	return No
}

// note records what a rule does with some of the traffic. The sent traffic includes
// first packets of connections. The received traffic may consist of answers alone.
func (s *survey) note(b branch, f Fate) {
	narrow := b.why&ofFew != 0
	if f == Dropped && s.doubt == "" && !narrow && (b.why&notRead != 0 || s.Ports != nil) {
		s.doubt = s.at
	}
	if f != Accepted {
		return
	}
	s.maybe = s.maybe || b.why != ofState
	s.most = s.most || !narrow && !(b.answers && s.Out)
	s.answers = s.answers || b.why == ofState && b.answers && !s.Out && b.code == nfAccept
}

// follow returns the effect of a branch on the traffic that it matches. It does not follow a
// conditional call of another chain; it assumes that the called chain may accept.
func (s *survey) follow(b branch, depth int) (f Fate, ends bool) {
	switch b.code {
	case nfDrop:
		return Dropped, true
	case nfAccept:
		return Accepted, true
	case nfQueue:
		return Accepted, false
	case unix.NFT_RETURN:
		if depth == 0 {
			return returns, true
		}
		return goesOn, true
	case unix.NFT_JUMP, unix.NFT_GOTO:
		if b.is == Perhaps && !b.begins && s.Ports == nil {
			return Accepted, false
		}
		f := s.chain(b.chain, depth+1)
		return f, f != goesOn || b.code == unix.NFT_GOTO
	}
	return goesOn, false
}

// Drop describes a rule or policy of a base chain that drops traffic.
type Drop struct {
	At    string // such as "rule 1 of chain FORWARD"; "" if no rule drops, or if only the policy does and the caller reports the policy
	Maybe bool   // an earlier rule may accept some of the traffic
	Begun bool   // only new connections are dropped, answers are not
	Doubt string // only if At is "": a rule that may drop but cannot be evaluated
}

// DroppedBy returns the rule of a base chain that drops the traffic. If no rule drops the traffic
// but the chain's policy does, DroppedBy reports this only if a rule leads to the policy, or if
// traffic has Ports.
func DroppedBy(t *nft.Table, base nft.Chain, traffic Traffic) Drop {
	s := newSurvey(t, traffic)
	switch f := s.chain(base.Name, 0); {
	case f == Dropped:
		return Drop{At: s.at, Maybe: s.maybe, Begun: s.begun}
	case f == returns && base.Drops:
		return Drop{At: s.at + ", and the policy of the chain", Maybe: s.maybe}
	case f == goesOn && base.Drops && traffic.Ports != nil:
		return Drop{At: "the policy of chain " + base.Name, Maybe: s.maybe}
	}
	return Drop{Doubt: s.doubt}
}

// Passed reports whether a base chain accepts connections that containers begin, and the
// answers to them. link has the meaning of Traffic.Link.
func Passed(t *nft.Table, base nft.Chain, net netip.Prefix, link string) (worst Answer) {
	for _, out := range []bool{true, false} {
		s := newSurvey(t, Traffic{Net: net, Link: link, Out: out})
		s.replies = !out
		worst = max(worst, s.passes(base))
	}
	return worst
}

func (s *survey) passes(base nft.Chain) Answer {
	f := s.chain(base.Name, 0)
	switch {
	case f == Accepted, s.answers, f != Dropped && !base.Drops:
		return Yes
	case s.most:
		return Perhaps
	}
	return No
}
