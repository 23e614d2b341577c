// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package eval

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// knowledge is what a walk knows of packets, and of sets in which rules look for them.
type knowledge struct {
	ethernet, network, transport cells // headers
	meta, ct                     map[uint32]cells

	link []byte // the link at the known end; nil if it has none

	// members returns the elements of a set. If they were not read, it returns none and the cause.
	members func(set string) (list []nft.Member, why cause)
	// lacks reports whether a set surely does not contain the unknown value.
	lacks func(set string, key cells) bool
	// differs reports whether the unknown value is surely not this one.
	differs func(c cells, value []byte) bool
}

// These are verdicts of netfilter. A packet that is queued goes to a program, which decides.
const (
	nfDrop   = 0
	nfAccept = 1
	nfQueue  = 3
)

// choice is a verdict that a rule may give.
type choice struct {
	match          // whether packets have the element of a verdict map
	element int    // its number in the map
	code    int32  // unix.NFT_JUMP, nfDrop, …
	chain   string // the target of a jump or a goto
}

// outcome is what a rule does.
type outcome struct {
	match            // whether packets meet its conditions
	choices []choice // its verdict, or those of a verdict map that packets may get
	doubt   string   // what was not understood
	stray   bool     // that may itself decide about the packet, or change it
}

// run is the evaluation of a rule.
type run struct {
	*knowledge
	regs registers
	outcome
}

// meet evaluates a rule.
func (k *knowledge) meet(rule nft.Rule) outcome {
	r := run{knowledge: k}
	r.regs.forget()
	for _, e := range rule.Exprs {
		r.match = r.and(r.expr(e))
		if r.is == No || len(r.choices) > 0 {
			break
		}
	}
	return r.outcome
}

// expr evaluates an expression.
func (r *run) expr(e nft.Expr) match {
	switch e.Name {
	case "immediate":
		r.immediate(e)
	case "meta":
		r.get(e, unix.NFTA_META_SREG, unix.NFTA_META_DREG, r.meta[e.Number(unix.NFTA_META_KEY)])
	case "ct":
		r.get(e, unix.NFTA_CT_SREG, unix.NFTA_CT_DREG, r.ct[e.Number(unix.NFTA_CT_KEY)])
	case "payload":
		if e.Attr(unix.NFTA_PAYLOAD_SREG) != nil {
			r.strange(e) // changes the packet
			break
		}
		r.regs.load(e.Number(unix.NFTA_PAYLOAD_DREG), r.payload(e))
	case "bitwise":
		r.regs.load(e.Number(unix.NFTA_BITWISE_DREG), r.bitwise(e))
	case "cmp":
		value := e.Value(unix.NFTA_CMP_DATA)
		return r.compare(r.regs.at(e.Number(unix.NFTA_CMP_SREG), uint32(len(value))), e.Number(unix.NFTA_CMP_OP), value)
	case "range":
		return r.inRange(e)
	case "lookup":
		return r.lookup(e)
	case "match":
		return r.matched(e)
	default:
		return r.other(e)
	}
	return match{}
}

// other evaluates expressions that do not read the packet, and expressions that this package does not
// know.
func (r *run) other(e nft.Expr) match {
	switch e.Name {
	case "counter", "log", "last", "notrack", "flow_offload":
		return match{}
	case "reject":
		r.gives(nfDrop, "")
		return match{}
	case "queue":
		r.gives(nfQueue, "")
		return match{}
	case "target":
		r.target(e)
		return match{}
	case "objref":
		if e.Number(unix.NFTA_OBJREF_IMM_TYPE) == unix.NFT_OBJECT_COUNTER {
			return match{}
		}
	case "limit", "quota", "connlimit", "dynset", "fib", "rt", "socket", "osf", "exthdr", "numgen", "hash", "byteorder", "xfrm", "tunnel":
	default:
		r.strange(e)
		r.regs.forget()
		return match{Perhaps, unsaid}
	}
	r.regs.forget()
	r.unclear("its condition " + e.Name)
	return match{Perhaps, unsaid}
}

// unclear notes a condition that was not understood.
func (r *run) unclear(what string) {
	if !r.stray {
		r.doubt = what
	}
}

// strange notes an expression that may decide about the packet by itself.
func (r *run) strange(e nft.Expr) {
	r.doubt, r.stray = fmt.Sprintf("its expression %.40q", e.Name), true
}

func (r *run) gives(code int32, chain string) {
	r.choices = append(r.choices, choice{code: code, chain: chain})
}

func (r *run) immediate(e nft.Expr) {
	if code, chain, ok := (nft.Rule{Exprs: []nft.Expr{e}}).Verdict(); ok && e.Number(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
		r.gives(code, chain)
		return
	}
	r.regs.load(e.Number(unix.NFTA_IMMEDIATE_DREG), cellsOf(e.Value(unix.NFTA_IMMEDIATE_DATA)...))
}

// get loads a value, unless the expression sets it.
func (r *run) get(e nft.Expr, from, to uint16, value cells) {
	switch {
	case e.Attr(from) != nil:
	case value == nil:
		r.regs.load(e.Number(to), blank(unix.IFNAMSIZ, unsaid)) // the longest value
	default:
		r.regs.load(e.Number(to), value)
	}
}

func (r *run) payload(e nft.Expr) cells {
	var header cells
	switch e.Number(unix.NFTA_PAYLOAD_BASE) {
	case unix.NFT_PAYLOAD_LL_HEADER:
		header = r.ethernet
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		header = r.network
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		header = r.transport
	}
	at, size := uint64(e.Number(unix.NFTA_PAYLOAD_OFFSET)), uint64(e.Number(unix.NFTA_PAYLOAD_LEN))
	if at+size > uint64(len(header)) {
		return blank(int(min(size, 64)), unsaid)
	}
	return header[at : at+size]
}

// bitwise evaluates a mask. Shifts are not evaluated.
func (r *run) bitwise(e nft.Expr) cells {
	const operation = 6 // NFTA_BITWISE_OP; 0 is mask and xor
	size := min(e.Number(unix.NFTA_BITWISE_LEN), 64)
	in := r.regs.at(e.Number(unix.NFTA_BITWISE_SREG), size)
	mask, xor := e.Value(unix.NFTA_BITWISE_MASK), e.Value(unix.NFTA_BITWISE_XOR)
	if e.Number(operation) != 0 || len(mask) != len(in) || len(xor) != len(in) {
		return blank(int(size), in.why()|unsaid)
	}
	return in.masked(mask, xor)
}

func (r *run) compare(have cells, op uint32, value []byte) match {
	least, most := make([]byte, len(value)), bytes.Repeat([]byte{0xff}, len(value))
	switch op {
	case unix.NFT_CMP_EQ, unix.NFT_CMP_NEQ:
		return r.equal(have, value).not(op == unix.NFT_CMP_NEQ)
	case unix.NFT_CMP_LTE, unix.NFT_CMP_GT:
		return have.within(least, value).open().not(op == unix.NFT_CMP_GT)
	case unix.NFT_CMP_GTE, unix.NFT_CMP_LT:
		return have.within(value, most).open().not(op == unix.NFT_CMP_LT)
	}
	return match{Perhaps, unsaid}
}

// equal compares with one value. Only few packets go back through the link from which they came.
func (r *run) equal(have cells, value []byte) match {
	m := have.equal(value)
	switch {
	case m.is == Perhaps && r.differs != nil && r.differs(have, value):
		return match{is: No}
	case m.why&otherLink != 0 && bytes.HasPrefix(r.link, value):
		m.why |= ofFew
	}
	return m
}

func (r *run) inRange(e nft.Expr) match {
	from, to := e.Value(unix.NFTA_RANGE_FROM_DATA), e.Value(unix.NFTA_RANGE_TO_DATA)
	have := r.regs.at(e.Number(unix.NFTA_RANGE_SREG), uint32(len(from)))
	return have.within(from, to).not(e.Number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ)
}

// matched evaluates a match of iptables.
func (r *run) matched(e nft.Expr) match {
	name := e.Text(unix.NFTA_MATCH_NAME)
	switch name {
	case "comment":
		return match{}
	case "conntrack":
		return r.conntrack(e.Attr(unix.NFTA_MATCH_INFO))
	}
	r.unclear("its match " + name)
	if slices.Contains([]string{"tcp", "udp", "multiport", "icmp", "icmp6", "mark", "connmark", "limit"}, name) {
		return match{Perhaps, ofFew}
	}
	return match{Perhaps, unsaid}
}

// conntrack evaluates the flags, the inverted flags and the states of xt_conntrack_mtinfo3
// (linux/netfilter/xt_conntrack.h), unless it also looks at something else.
func (r *run) conntrack(info []byte) match {
	const flags, inverted, states = 146, 148, 150
	at := binary.NativeEndian.Uint16
	if len(info) < states+2 || at(info[flags:]) != uint16(xt.ConntrackState) {
		return match{Perhaps, ofState}
	}
	mask, none := binary.NativeEndian.AppendUint32(nil, uint32(at(info[states:]))), make([]byte, 4)
	return r.equal(r.ct[unix.NFT_CT_STATE].masked(mask, none), none).not(at(info[inverted:]) == 0)
}

// target evaluates a target of iptables.
func (r *run) target(e nft.Expr) {
	switch e.Text(unix.NFTA_TARGET_NAME) {
	case "REJECT", "DROP":
		r.gives(nfDrop, "")
	case "NFQUEUE":
		r.gives(nfQueue, "")
	default:
		r.strange(e)
	}
}

// lookup evaluates a lookup in a set or a map. Data of a map that is not a verdict stays unknown.
func (r *run) lookup(e nft.Expr) match {
	set := e.Text(unix.NFTA_LOOKUP_SET)
	found, elements := r.find(set, e.Number(unix.NFTA_LOOKUP_SREG))
	if elements == nil && found.is == Perhaps {
		r.unclear("its set " + set)
	}
	switch {
	case e.Attr(unix.NFTA_LOOKUP_DREG) == nil:
		return found.not(e.Number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0)
	case e.Number(unix.NFTA_LOOKUP_DREG) != unix.NFT_REG_VERDICT:
		r.regs.forget()
		return found
	case found.is == No:
		return found
	case found.is == Perhaps:
		r.doubt, r.stray = "its map "+set, true
	}
	r.choices = elements
	if elements == nil {
		r.choices = []choice{{match: match{Perhaps, unsaid}, code: nfQueue}} // a map that was not read may do anything
	}
	return match{}
}

// find looks for the key in a register in a set. It returns the verdicts of all elements that may match
// packets, or of the one that surely matches. If the set was not read, it returns none.
func (r *run) find(set string, reg uint32) (all match, elements []choice) {
	members, why := r.members(set)
	if members == nil {
		return match{Perhaps, why | r.regs.at(reg, 4).why()}, nil
	}
	all, elements = match{is: No}, []choice{}
	for i, m := range members {
		has := r.has(m, reg)
		if has.is == No {
			continue
		}
		c := choice{match: has, element: i, code: nfQueue}
		if m.Verdict != nil {
			c.code, c.chain = int32(m.Verdict.Kind), m.Verdict.Chain
		}
		if has.is == Yes {
			return has, []choice{c}
		}
		all, elements = all.or(has), append(elements, c)
	}
	if all.is == Perhaps && r.lacks != nil && r.lacks(set, r.regs.at(reg, uint32(len(members[0].Low)))) {
		return match{is: No}, nil
	}
	return all, elements
}

// has reports whether an element has the key in a register. For a range of several fields, the kernel
// compares each field, or the whole key.
func (r *run) has(m nft.Member, reg uint32) (all match) {
	if !m.Fields && !bytes.Equal(m.Low, m.High) {
		return r.regs.at(reg, uint32(len(m.Low))).within(m.Low, m.High)
	}
	for _, f := range r.regs.key(reg, len(m.Low)) {
		low, high := m.Low[f.from:f.to], m.High[f.from:f.to]
		if bytes.Equal(low, high) {
			all = all.and(r.equal(f.cells, low))
		} else {
			all = all.and(f.within(low, high))
		}
	}
	return all
}
