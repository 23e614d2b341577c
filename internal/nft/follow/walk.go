// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package follow follows the traffic of containers through the rules of any nftables table. It
// decides as much as the known fields of the traffic allow.
package follow

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// If one table accepts a packet, another table or a later chain may still drop it. So this
// package looks for rules that drop, and walks through the chains in the order of the containers'
// traffic.

// fate says how a walk ends.
type fate int

const (
	goesOn fate = iota
	accepted
	dropped
	returned // in a base chain, the policy decides
)

// walk follows traffic through a table.
type walk struct {
	table *nft.Table
	Traffic
	maybe   bool   // an earlier rule may have accepted some of the traffic
	most    bool   // an earlier rule may have accepted all traffic, not only some kind of packets
	answers bool   // an earlier rule has accepted answers
	at      string // the rule that ended the walk, such as "rule 1 of chain FORWARD"
	doubt   string // the first rule that may drop but whose conditions cannot be evaluated
	begun   bool   // the walk ended for traffic that begins a connection
	replies bool   // the walk follows answers
}

// mostCalls limits how deep chains may call chains. The kernel has the same limit.
const mostCalls = 16

func (w *walk) chain(name string, depth int) fate {
	for i, r := range w.table.Rules[name] {
		for _, b := range w.branches(r) {
			if b.is == No || depth > mostCalls {
				continue
			}
			f, ends := w.branch(b, depth)
			if w.at == "" && f != goesOn {
				w.at = fmt.Sprintf("rule %d of chain %s", i+1, name)
			}
			if begun := b.begins && f == dropped && !w.replies; ends && (b.is == Yes || begun) {
				w.begun = w.begun || b.is != Yes
				return f
			}
			w.note(b, f)
			w.at = ""
		}
	}
	return goesOn
}

// branch is one effect of a rule on some of the traffic.
type branch struct {
	condition
	verdict *expr.Verdict // nil if the branch has none
	drops   bool          // drops without an nftables verdict
	accepts bool          // may accept without an nftables verdict
}

// branches returns all effects of a rule: one branch, or one for each element of a verdict
// map.
func (w *walk) branches(r nft.Rule) []branch {
	c, chosen := w.meets(r)
	if chosen != nil {
		for i := range chosen {
			chosen[i].condition = c.and(chosen[i].condition)
		}
		return chosen
	}
	b := branch{condition: c}
	if code, to, ok := r.Verdict(); ok {
		b.verdict = &expr.Verdict{Kind: expr.VerdictKind(code), Chain: to}
	}
	b.drops = r.Has("reject", "") || r.Has("target", "REJECT") || r.Has("target", "DROP")
	b.accepts = r.Has("target", "NFQUEUE") || r.Has("queue", "")
	return []branch{b}
}

// note records what a rule does with the traffic. Traffic that containers send may begin a
// connection. Traffic that they receive may be only answers.
func (w *walk) note(b branch, f fate) {
	if f == dropped && w.doubt == "" && !b.narrow && (b.unread || w.Ports != nil) {
		w.doubt = w.at
	}
	if f != accepted {
		return
	}
	w.maybe = w.maybe || !b.state
	w.most = w.most || !b.narrow && !(b.answers && w.Out)
	w.answers = w.answers || b.state && b.answers && !w.Out && b.verdict != nil && b.verdict.Kind == expr.VerdictAccept
}

// branch returns the effect of a rule on the traffic that it matches. branch does not follow a
// conditional call of another chain; it assumes that the called chain may accept.
func (w *walk) branch(b branch, depth int) (f fate, ends bool) {
	switch {
	case b.drops:
		return dropped, true
	case b.accepts:
		return accepted, false
	case b.verdict == nil:
		return goesOn, false
	}
	switch b.verdict.Kind {
	case expr.VerdictDrop:
		return dropped, true
	case expr.VerdictAccept:
		return accepted, true
	case expr.VerdictReturn:
		if depth == 0 {
			return returned, true
		}
		return goesOn, true
	case expr.VerdictJump, expr.VerdictGoto:
		if b.is == Perhaps && !b.begins && w.Ports == nil {
			return accepted, false
		}
		f := w.chain(b.verdict.Chain, depth+1)
		return f, f != goesOn || b.verdict.Kind == expr.VerdictGoto
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

// DroppedBy returns the rule of a base chain that drops the traffic. DroppedBy reports the
// chain's policy only if a rule leads to the policy, or if traffic has Ports.
func DroppedBy(t *nft.Table, base nft.Chain, traffic Traffic) Drop {
	w := &walk{table: t, Traffic: traffic}
	switch f := w.chain(base.Name, 0); {
	case f == dropped:
		return Drop{At: w.at, Maybe: w.maybe, Begun: w.begun}
	case f == returned && base.Drops:
		return Drop{At: w.at + ", and the policy of the chain", Maybe: w.maybe}
	case f == goesOn && base.Drops && traffic.Ports != nil:
		return Drop{At: "the policy of chain " + base.Name, Maybe: w.maybe}
	}
	return Drop{Doubt: w.doubt}
}

// Passed reports whether a base chain accepts connections that containers begin, and the
// answers to them. link has the meaning of Traffic.Link.
func Passed(t *nft.Table, base nft.Chain, net netip.Prefix, link string) (worst Answer) {
	for _, out := range []bool{true, false} {
		w := &walk{table: t, Traffic: Traffic{Net: net, Link: link, Out: out}, replies: !out}
		worst = max(worst, w.passes(base))
	}
	return worst
}

func (w *walk) passes(base nft.Chain) Answer {
	f := w.chain(base.Name, 0)
	switch {
	case f == accepted, w.answers, f != dropped && !base.Drops:
		return Yes
	case w.most:
		return Perhaps
	}
	return No
}
