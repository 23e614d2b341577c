// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package eval evaluates rules of nftables, of any program's table, for packets of which only some bits
// are known. It answers two questions: what happens to the first packet of a connection (Through), and
// what happens to all packets of a network (DroppedBy, Passed).
//
// Both are walks through the chains that evaluate each rule (rule.go). An unknown bit has a cause
// (cells.go). A rule that reads unknown bits matches perhaps. Then the walk of one packet follows both
// results, and the walk of a network goes on and notes what the rule may do.
//
// An expression that the package does not know may do anything. So an answer may say that it is not
// certain; it is never a guess.
package eval

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Fate is what may happen to a packet. If it is not certain, Fate has both bits.
type Fate uint8

// These are the bits. goesOn and returns only say which rule is next; no walk ends with them.
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
func (s Step) String() string { return nameOf(s.Number, s.Chain) }

func nameOf(rule int, chain string) string { return fmt.Sprintf("rule %d of chain %s", rule, chain) }

// Path is what happens to a packet in a base chain: the rules that match it, in order. If Fate is not
// certain, the steps that are not Sure say why.
type Path struct {
	Fate  Fate
	Steps []Step
}

// Through follows a packet through a base chain of a table. An accept holds for this base chain only.
func Through(t *nft.Table, base nft.Chain, p Packet) (Path, error) {
	w := &walk{table: t, packet: p}
	w.knowledge = p.knowledge(w.members)
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

// walk follows one packet through a table.
type walk struct {
	*knowledge
	table  *nft.Table
	packet Packet
	steps  []Step
	err    error
}

// members returns the elements of a set.
func (w *walk) members(set string) ([]nft.Member, cause) {
	if slices.Contains(w.packet.Without, set) {
		return []nft.Member{}, 0
	}
	list, err := w.table.Members(set)
	w.err = cmp.Or(w.err, err)
	return list, notRead
}

// chain returns what may happen in a chain; goesOn is its end. reached reports whether the packet
// surely comes to it.
func (w *walk) chain(name string, depth int, reached bool) (fate Fate) {
	if depth > mostJumps {
		return anything
	}
	for i, r := range w.table.Rules[name] {
		o := w.meet(r)
		if o.is == No && !o.stray || w.packet.Ignores != nil && w.packet.Ignores(r) {
			continue
		}
		step := Step{Rule: r, Number: i + 1, Sure: reached && o.is == Yes && !o.stray, Not: o.doubt}
		f := w.follow(step, o, depth)
		if o.is == Perhaps {
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

// follow notes a step, and returns what the rule does to the packet.
func (w *walk) follow(s Step, o outcome, depth int) Fate {
	at := len(w.steps)
	w.steps = append(w.steps, s)
	switch {
	case o.stray:
		w.steps[at].Does = Accepted | Dropped
		return anything
	case len(o.choices) == 0:
		return goesOn
	}
	switch c := o.choices[0]; c.code {
	case unix.NFT_JUMP, unix.NFT_GOTO:
		w.steps[at].To = c.chain
		return landed(w.chain(c.chain, depth+1, s.Sure), c.code)
	case unix.NFT_RETURN:
		return returns
	case unix.NFT_CONTINUE, unix.NFT_BREAK:
		return goesOn
	default:
		w.steps[at].Does = fateOf(c.code)
	}
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

func fateOf(code int32) Fate {
	switch code {
	case nfDrop:
		return Dropped
	case nfAccept:
		return Accepted
	}
	return Accepted | Dropped
}
