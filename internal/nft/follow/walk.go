// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package follow follows containers' traffic through the rules of any nftables table, as
// far as the known fields of the traffic decide.
package follow

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// An accept in one table does not overrule a drop in another table, nor a drop in an
// earlier chain. follow finds rules that drop by walking the chains with the containers'
// traffic.

// fate is where a walk ends.
type fate int

const (
	goesOn fate = iota
	accepted
	dropped
	returned // to the policy, from a base chain
)

// walk follows traffic through a table.
type walk struct {
	table *nft.Table
	Traffic
	maybe   bool   // an earlier rule may have accepted some of it
	most    bool   // and more than packets of some kind
	answers bool   // an earlier rule has accepted answers
	at      string // the rule that ended it: "rule 1 of chain FORWARD"
	doubt   string // the first rule that may drop, when its conditions cannot be evaluated
	begun   bool   // the traffic that the rule ends begins a connection
	replies bool   // the walk follows answers
}

// mostCalls limits how deep chains call chains, as the kernel does.
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

// branch is what a rule does with some of the traffic.
type branch struct {
	condition
	verdict *expr.Verdict // nil for none
	drops   bool          // without a verdict
	accepts bool          // may accept, without a verdict
}

// branches returns all that a rule does: one branch, or one for each element of a verdict
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

// note records the effect of a rule on the traffic. Traffic that containers send may begin
// connections; traffic that they receive has at least answers.
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

// branch returns the effect of a rule on the traffic that it matches. A call under a
// condition is not followed: it may accept.
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

// Drop is a rule or policy that drops traffic in a base chain.
type Drop struct {
	At    string // "rule 1 of chain FORWARD"; "" for nothing, or a policy that the caller reports
	Maybe bool   // an earlier rule may accept some of the traffic
	Begun bool   // it drops new connections, and not answers
	Doubt string // when At is "": a rule that may drop and cannot be evaluated
}

// DroppedBy returns the rule in a base chain that drops traffic. It reports the policy only
// where a rule leads to it, and for Ports.
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
// answers to them. link is as in Traffic.
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
