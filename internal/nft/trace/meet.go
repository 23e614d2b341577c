// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// match says whether a condition holds for the packet.
type match uint8

const (
	always match = iota
	perhaps
	never
)

// is returns always or never.
func is(yes bool) match {
	if yes {
		return always
	}
	return never
}

// not inverts an answer.
func (m match) not(invert bool) match {
	if invert {
		return never - m
	}
	return m
}

// meeting is what a rule does to the packet.
type meeting struct {
	is      match
	verdict *verdict // nil if the rule has none
	not     string   // what was not understood
	stray   bool     // that may itself decide about the packet
}

type verdict struct {
	code  int32
	chain string
}

// meet evaluates a rule.
func (w *walk) meet(r nft.Rule) (m meeting) {
	regs := newRegisters()
	for _, e := range r.Exprs {
		switch e.Name {
		case "immediate":
			if code, chain, ok := r.Verdict(); ok && e.Number(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
				m.verdict = &verdict{code, chain}
				return m
			}
			regs.load(e.Number(unix.NFTA_IMMEDIATE_DREG), cellsOf(e.Value(unix.NFTA_IMMEDIATE_DATA)))
		case "lookup":
			m.is = max(m.is, w.lookup(e, regs, &m))
		case "reject":
			m.verdict = &verdict{code: nfDrop}
			return m
		default:
			m.is = max(m.is, w.condition(e, regs, &m))
		}
		if m.is == never || m.stray {
			return m
		}
	}
	return m
}

// condition evaluates an expression without a verdict.
func (w *walk) condition(e nft.Expr, regs *registers, m *meeting) match {
	switch e.Name {
	case "counter", "log", "last", "notrack", "flow_offload":
		return always
	case "meta":
		if e.Attr(unix.NFTA_META_SREG) != nil {
			return always // sets a value
		}
		regs.load(e.Number(unix.NFTA_META_DREG), w.packet.meta(e.Number(unix.NFTA_META_KEY)))
	case "ct":
		if e.Attr(unix.NFTA_CT_SREG) != nil {
			return always
		}
		regs.load(e.Number(unix.NFTA_CT_DREG), ct(e.Number(unix.NFTA_CT_KEY)))
	case "payload":
		if e.Attr(unix.NFTA_PAYLOAD_SREG) != nil {
			return m.strange(e) // changes the packet
		}
		regs.load(e.Number(unix.NFTA_PAYLOAD_DREG), w.payload(e))
	case "bitwise":
		regs.load(e.Number(unix.NFTA_BITWISE_DREG), masked(e, regs))
	case "cmp":
		value := e.Value(unix.NFTA_CMP_DATA)
		return w.compare(regs.at(e.Number(unix.NFTA_CMP_SREG), uint32(len(value))), e.Number(unix.NFTA_CMP_OP), value)
	case "range":
		return inRange(e, regs)
	default:
		return m.foreign(e, regs)
	}
	return always
}

// foreign evaluates what this package does not know. Some expressions are known to be only conditions.
func (m *meeting) foreign(e nft.Expr, regs *registers) match {
	switch e.Name {
	case "match":
		if e.Text(unix.NFTA_MATCH_NAME) == "comment" {
			return always
		}
	case "objref":
		if e.Number(unix.NFTA_OBJREF_IMM_TYPE) == unix.NFT_OBJECT_COUNTER {
			return always
		}
	case "limit", "quota", "connlimit", "dynset", "fib", "rt", "socket", "osf", "exthdr", "numgen", "hash", "byteorder", "xfrm", "tunnel":
	default:
		return m.strange(e)
	}
	regs.forget()
	m.not = "its condition " + e.Name
	return perhaps
}

// strange notes an expression that may decide about the packet by itself.
func (m *meeting) strange(e nft.Expr) match {
	m.not, m.stray = fmt.Sprintf("its expression %.40q", e.Name), true
	return perhaps
}

func cellsOf(b []byte) cells {
	c := blank(len(b))
	c.put(0, b...)
	return c
}

func (w *walk) payload(e nft.Expr) cells {
	var header cells
	switch e.Number(unix.NFTA_PAYLOAD_BASE) {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		header = w.network
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		header = w.transport
	}
	at, size := uint64(e.Number(unix.NFTA_PAYLOAD_OFFSET)), uint64(e.Number(unix.NFTA_PAYLOAD_LEN))
	if at+size > uint64(len(header)) {
		return blank(int(min(size, 64)))
	}
	return header[at : at+size]
}

// masked evaluates a bitwise expression. A byte whose mask is zero is known. Shifts are not evaluated.
func masked(e nft.Expr, regs *registers) cells {
	size := min(e.Number(unix.NFTA_BITWISE_LEN), 64)
	in, out := regs.at(e.Number(unix.NFTA_BITWISE_SREG), size), blank(int(size))
	mask, xor := e.Value(unix.NFTA_BITWISE_MASK), e.Value(unix.NFTA_BITWISE_XOR)
	if e.Number(bitwiseOp) != 0 || len(mask) != len(out) || len(xor) != len(out) {
		return out
	}
	for i := range out {
		switch {
		case mask[i] == 0:
			out[i] = int16(xor[i])
		case in[i] >= 0:
			out[i] = int16(byte(in[i])&mask[i] ^ xor[i])
		}
	}
	return out
}

const bitwiseOp = 6 // NFTA_BITWISE_OP; 0 is mask and xor

// compare evaluates a comparison. Different bytes are known to differ even if others are not known.
func (w *walk) compare(have cells, op uint32, want []byte) match {
	if op == unix.NFT_CMP_EQ || op == unix.NFT_CMP_NEQ {
		same := equal(have, want)
		if a, ok := netip.AddrFromSlice(want); ok && have.address() && w.packet.Outside.Differs(a) {
			same = never
		}
		return same.not(op == unix.NFT_CMP_NEQ)
	}
	b, ok := have.known()
	if !ok {
		return perhaps
	}
	c := bytes.Compare(b, want)
	switch op {
	case unix.NFT_CMP_LT:
		return is(c < 0)
	case unix.NFT_CMP_LTE:
		return is(c <= 0)
	case unix.NFT_CMP_GT:
		return is(c > 0)
	case unix.NFT_CMP_GTE:
		return is(c >= 0)
	}
	return perhaps
}

func equal(have cells, want []byte) match {
	m := always
	for i, v := range have {
		switch {
		case v < 0:
			m = perhaps
		case byte(v) != want[i]:
			return never
		}
	}
	return m
}

// inRange evaluates a range expression.
func inRange(e nft.Expr, regs *registers) match {
	from, to := e.Value(unix.NFTA_RANGE_FROM_DATA), e.Value(unix.NFTA_RANGE_TO_DATA)
	b, ok := regs.at(e.Number(unix.NFTA_RANGE_SREG), uint32(len(from))).known()
	if !ok || len(from) != len(to) {
		return perhaps
	}
	in := bytes.Compare(from, b) <= 0 && bytes.Compare(b, to) <= 0
	return is(in).not(e.Number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ)
}

// lookup evaluates a lookup in a set or a map. Data of a map that is not a verdict stays unknown.
func (w *walk) lookup(e nft.Expr, regs *registers, m *meeting) match {
	set := e.Text(unix.NFTA_LOOKUP_SET)
	found, member, read := w.find(set, regs, e.Number(unix.NFTA_LOOKUP_SREG))
	if !read {
		m.not = "its set " + set
	}
	switch {
	case e.Attr(unix.NFTA_LOOKUP_DREG) == nil:
		return found.not(e.Number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0)
	case e.Number(unix.NFTA_LOOKUP_DREG) != unix.NFT_REG_VERDICT:
		regs.forget()
		return found
	case found == perhaps || found == always && member.Verdict == nil:
		m.not, m.stray = "its map "+set, true
	case found == always:
		m.verdict = &verdict{int32(member.Verdict.Kind), member.Verdict.Chain}
	}
	return found
}

// find looks for the packet in a set. read reports whether the elements of the set were understood.
func (w *walk) find(set string, regs *registers, reg uint32) (in match, member nft.Member, read bool) {
	if slices.Contains(w.packet.Without, set) {
		return never, nft.Member{}, true
	}
	members, err := w.table.Members(set)
	if err != nil || members == nil {
		w.err = cmp.Or(w.err, err)
		return perhaps, nft.Member{}, false
	}
	in, read = never, true
	var key cells
	for _, m := range members {
		key = regs.at(reg, uint32(len(m.Low)))
		switch holds(m, key) {
		case always:
			return always, m, true
		case perhaps:
			in, read = perhaps, read && !m.Fields
		}
	}
	if in == perhaps && key.address() && w.packet.Outside.Lacks(set) {
		in = never
	}
	return in, nft.Member{}, read
}

// holds reports whether a member of a set has a key.
func holds(m nft.Member, key cells) match {
	if bytes.Equal(m.Low, m.High) {
		return equal(key, m.Low)
	}
	b, ok := key.known()
	switch {
	case everything(m):
		return always
	case !ok || m.Fields:
		return perhaps
	}
	return is(bytes.Compare(m.Low, b) <= 0 && bytes.Compare(b, m.High) <= 0)
}

// everything reports whether a member has all keys.
func everything(m nft.Member) bool {
	return !slices.ContainsFunc(m.Low, func(b byte) bool { return b != 0 }) && !slices.ContainsFunc(m.High, func(b byte) bool { return b != 0xff })
}
