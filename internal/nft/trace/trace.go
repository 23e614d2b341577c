// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package trace follows one packet through the chains of a table, by the rules that the kernel has.
// The packet is the first of a connection, and some of it may not be known, such as its port. Then a
// rule that looks there matches perhaps, and the walk follows both ways. Rules of other programs are
// evaluated in the same way. An expression that the package does not know may do anything, so the
// answer says that the packet's fate is not certain instead of guessing it.
//
// Package follow answers another question: what happens to all traffic of a network.
package trace

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Fate is what may happen to a packet. If it is not certain, Fate has both bits.
type Fate uint8

// These are the bits. The last two do not leave a walk: they say where it goes on.
const (
	Accepted Fate = 1 << iota
	Dropped
	goesOn  // with the next rule
	returns // to the rule after the jump to this chain
)

// Step is a rule that matches the packet.
type Step struct {
	nft.Rule
	Number int    // in its chain, from 1
	Does   Fate   // its own verdict; 0 if it has none or goes to a chain
	To     string // the chain to which it goes
	Sure   bool   // the packet surely comes to the rule, and matches it
	Not    string // what was not understood in it
}

// String names the rule.
func (s Step) String() string { return fmt.Sprintf("rule %d of chain %s", s.Number, s.Chain) }

// Path is what happens to a packet in a base chain: the rules that match it, in order. Unless Fate is
// certain, the rules that are not sure say why.
type Path struct {
	Fate  Fate
	Steps []Step
}

// Through follows a packet through a base chain of a table. An accept holds for this base chain only.
func Through(t *nft.Table, base nft.Chain, p Packet) (Path, error) {
	w := &walk{table: t, packet: p, network: p.network(), transport: p.transport()}
	fate := w.chain(base.Name, 0, true)
	if fate&(goesOn|returns) != 0 {
		fate = fate&^(goesOn|returns) | policyOf(base)
	}
	return Path{fate, w.steps}, w.err
}

func policyOf(base nft.Chain) Fate {
	if base.Drops {
		return Dropped
	}
	return Accepted
}

// mostJumps is the kernel's limit (NFT_JUMP_STACK_SIZE).
const mostJumps = 16

const anything = Accepted | Dropped | goesOn | returns

type walk struct {
	table              *nft.Table
	packet             Packet
	network, transport cells // headers
	steps              []Step
	err                error
}

// chain returns what may happen in a chain; goesOn is its end. reached reports whether the packet
// surely comes to it.
func (w *walk) chain(name string, depth int, reached bool) (fate Fate) {
	if depth > mostJumps {
		return anything
	}
	for i, r := range w.table.Rules[name] {
		m := w.meet(r)
		if m.is == never || w.packet.Ignores != nil && w.packet.Ignores(r) {
			continue
		}
		step := Step{Rule: r, Number: i + 1, Sure: reached && m.is == always, Not: m.not}
		f := w.follow(&step, m, depth)
		if m.is == perhaps {
			f |= goesOn
		}
		fate |= f &^ goesOn
		if f&goesOn == 0 {
			return fate
		}
		reached = reached && f == goesOn
	}
	return fate | goesOn
}

// follow notes a step, and returns what the rule's verdict does.
func (w *walk) follow(s *Step, m meeting, depth int) Fate {
	at := len(w.steps)
	w.steps = append(w.steps, *s)
	switch {
	case m.not != "" && m.stray:
		w.steps[at].Does = Accepted | Dropped
		return anything
	case m.verdict == nil:
		return goesOn
	}
	switch m.verdict.code {
	case unix.NFT_JUMP, unix.NFT_GOTO:
		w.steps[at].To = m.verdict.chain
		f := w.chain(m.verdict.chain, depth+1, s.Sure)
		return landed(f, m.verdict.code)
	case unix.NFT_RETURN:
		return returns
	case unix.NFT_CONTINUE, unix.NFT_BREAK:
		return goesOn
	}
	w.steps[at].Does = fateOf(m.verdict.code)
	if w.steps[at].Does == Accepted|Dropped {
		w.steps[at].Not = "it gives the packet to another program"
	}
	return w.steps[at].Does
}

// landed returns what a jump or a goto does, if the chain does f. A goto does not come back.
func landed(f Fate, code int32) Fate {
	if f&(goesOn|returns) == 0 {
		return f
	}
	f &^= goesOn | returns
	if code == unix.NFT_GOTO {
		return f | returns
	}
	return f | goesOn
}

// These are verdicts of netfilter. A packet may also be stolen or queued: then a program decides.
const (
	nfDrop   = 0
	nfAccept = 1
)

func fateOf(code int32) Fate {
	switch code {
	case nfDrop:
		return Dropped
	case nfAccept:
		return Accepted
	}
	return Accepted | Dropped
}
