// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Traffic is what the containers of a network send (if Out is set) or receive. Only the
// containers' end is known. The other end may be any address and link.
type Traffic struct {
	Net  netip.Prefix
	Link string // the bridge; "" if every container has its own link
	Out  bool

	Index int // index of the link; 0 if not known

	// Ports, if set, are bridge ports; Link is then "". The walk follows the frames of these ports
	// through the chains of bridges and devices. It also reports a rule that may drop only some of
	// these frames.
	Ports []string
}

// Answer says whether a statement about the traffic is true.
type Answer int

// Perhaps means that the answer depends on fields that are not known.
const (
	Yes Answer = iota
	Perhaps
	No
)

// field says what a register contains.
type field struct {
	// kind is one of: 'p' protocol family, 'l' link, 'i' index of the link, 'a' address, 's'
	// state of the connection, 'o' link at the other end, 'q' link of Ports, 'n' a field that
	// differs between packets, '+' continuation of the field before. 0 means anything else.
	kind byte
	mask []byte
}

// condition says how the traffic matches a condition of a rule, or all conditions of the rule
// together.
type condition struct {
	is      Answer
	state   bool // the only unknown field is the state of the connection
	answers bool // matches only connection states that answers have
	begins  bool // matches the state of a connection's first packet
	narrow  bool // matches only some packets, for example those to one port
	unread  bool // unknown because the content of a set was not read
}

// and returns the condition that c and o hold together.
func (c condition) and(o condition) condition {
	switch {
	case c.is == No || o.is == Yes:
		return c
	case o.is == No || c.is == Yes:
		return o
	}
	return condition{Perhaps, c.state && o.state, c.answers || o.answers, c.begins && o.begins, c.narrow || o.narrow, c.unread || o.unread}
}

// meets reports whether the traffic meets all conditions of a rule. If the rule has a verdict
// map, meets also returns the verdicts that the map may choose.
func (w *walk) meets(r nft.Rule) (all condition, chosen []branch) {
	regs := new(registers)
	for _, e := range r.Exprs {
		var c condition
		if e.Name == "lookup" {
			c, chosen = w.lookup(e, regs)
		} else {
			c = w.meetsExpr(e, regs)
		}
		if all = all.and(c); all.is == No {
			return all, nil
		}
	}
	return all, chosen
}

func (t Traffic) meetsExpr(e nft.Expr, regs *registers) condition {
	switch e.Name {
	case "immediate", "counter", "log", "reject", "target", "notrack", "flow_offload":
		return condition{}
	case "meta":
		regs.load(e.Number(unix.NFTA_META_DREG), t.meta(e.Number(unix.NFTA_META_KEY)), 0)
		return condition{}
	case "payload":
		regs.load(e.Number(unix.NFTA_PAYLOAD_DREG), t.payload(e), e.Number(unix.NFTA_PAYLOAD_LEN))
		return condition{}
	case "ct":
		regs.load(e.Number(unix.NFTA_CT_DREG), stateOf(e), 0)
		return condition{}
	case "bitwise":
		f := regs.at(e.Number(unix.NFTA_BITWISE_SREG))
		f.mask = e.Value(unix.NFTA_BITWISE_MASK)
		regs.load(e.Number(unix.NFTA_BITWISE_DREG), f, e.Number(unix.NFTA_BITWISE_LEN))
		return condition{}
	case "cmp":
		f, op, value := regs.at(e.Number(unix.NFTA_CMP_SREG)), e.Number(unix.NFTA_CMP_OP), e.Value(unix.NFTA_CMP_DATA)
		c := condition{is: t.compare(f, op, value), state: f.kind == 's', narrow: f.kind == 'n' && (t.Ports == nil || op == unix.NFT_CMP_EQ) || f.kind == 'o' && op == unix.NFT_CMP_EQ && t.isLink(value)}
		c.answers = c.state && op == unix.NFT_CMP_NEQ && ofAnswers(f.mask)
		c.begins = c.state && ofNew(f.mask, op, value)
		return c
	case "match":
		return matched(e)
	}
	*regs = registers{} // an unknown expression may have changed any register
	return condition{is: Perhaps}
}

// matched evaluates an iptables match.
func matched(e nft.Expr) condition {
	switch e.Text(unix.NFTA_MATCH_NAME) {
	case "comment":
		return condition{}
	case "conntrack":
		c := condition{is: Perhaps, state: true}
		c.answers, c.begins = xtStates(e.Attr(unix.NFTA_MATCH_INFO))
		return c
	case "tcp", "udp", "multiport", "icmp", "icmp6", "mark", "connmark", "limit":
		return condition{is: Perhaps, narrow: true}
	}
	return condition{is: Perhaps}
}

func stateOf(e nft.Expr) field {
	switch e.Number(unix.NFTA_CT_KEY) {
	case unix.NFT_CT_STATE:
		return field{kind: 's'}
	case unix.NFT_CT_MARK:
		return field{kind: 'n'}
	}
	return field{}
}

// Bits of the connection's state, as ct and conntrack number them.
const (
	stateEstablished = 1 << 1
	stateNew         = 1 << 3
)

// ofAnswers reports whether a mask of states includes answers and excludes new connections.
func ofAnswers(mask []byte) bool {
	if len(mask) != 4 {
		return false
	}
	states := binary.NativeEndian.Uint32(mask)
	return states&stateEstablished != 0 && states&stateNew == 0
}

// ofNew reports whether a new connection satisfies a comparison of the state.
func ofNew(mask []byte, op uint32, value []byte) bool {
	state := uint32(stateNew)
	if len(mask) == 4 {
		state &= binary.NativeEndian.Uint32(mask)
	}
	same := bytes.Equal(value, binary.NativeEndian.AppendUint32(nil, state))
	return op == unix.NFT_CMP_EQ && same || op == unix.NFT_CMP_NEQ && !same
}

// xtStates reads the flags, the inverted flags and the states from xt_conntrack_mtinfo3
// (linux/netfilter/xt_conntrack.h). xtStates reports whether only answers have these states,
// and whether a new connection has one of them.
func xtStates(info []byte) (answers, begins bool) {
	const flags, inverted, states = 146, 148, 150
	at := binary.NativeEndian.Uint16
	if len(info) < states+2 || at(info[flags:]) != uint16(xt.ConntrackState) {
		return false, false
	}
	not := at(info[inverted:]) != 0
	isNew := at(info[states:])&stateNew != 0
	return !not && at(info[states:])&stateEstablished != 0 && !isNew, isNew != not
}

// meta returns what the traffic tells about a field of the packet's metadata. meta knows the
// family and the link at the containers' end.
func (t Traffic) meta(key uint32) field {
	switch {
	case key == uint32(expr.MetaKeyNFPROTO), key == uint32(expr.MetaKeyPROTOCOL):
		return field{kind: 'p'}
	case t.Ports != nil && slices.Contains([]uint32{uint32(expr.MetaKeyIIFNAME), uint32(expr.MetaKeyOIFNAME), unix.NFT_META_BRI_IIFNAME, unix.NFT_META_BRI_OIFNAME}, key):
		return field{kind: 'q'}
	case key == uint32(expr.MetaKeyL4PROTO), key == uint32(expr.MetaKeyMARK):
		return field{kind: 'n'}
	case t.Link != "" && (t.Out && key == uint32(expr.MetaKeyIIFNAME) || !t.Out && key == uint32(expr.MetaKeyOIFNAME)):
		return field{kind: 'l'}
	case t.Index != 0 && (t.Out && key == uint32(expr.MetaKeyIIF) || !t.Out && key == uint32(expr.MetaKeyOIF)):
		return field{kind: 'i'}
	case t.Link != "" && (key == uint32(expr.MetaKeyIIFNAME) || key == uint32(expr.MetaKeyOIFNAME)):
		return field{kind: 'o'}
	}
	return field{}
}

// payload returns what the traffic tells about a field of the packet. payload knows the
// containers' address.
func (t Traffic) payload(e nft.Expr) field {
	if e.Number(unix.NFTA_PAYLOAD_BASE) == uint32(expr.PayloadBaseTransportHeader) {
		return field{kind: 'n'}
	}
	offset, length := uint32(12), e.Number(unix.NFTA_PAYLOAD_LEN)
	if e.Number(unix.NFTA_PAYLOAD_BASE) == uint32(expr.PayloadBaseLLHeader) && e.Number(unix.NFTA_PAYLOAD_OFFSET) == 12 && length == 2 {
		return field{kind: 'p'}
	}
	size := uint32(t.Net.Addr().BitLen() / 8)
	if size == 16 {
		offset = 8
	}
	if !t.Out {
		offset += size
	}
	at := e.Number(unix.NFTA_PAYLOAD_OFFSET)
	switch {
	case e.Number(unix.NFTA_PAYLOAD_BASE) != uint32(expr.PayloadBaseNetworkHeader) || length > size:
		return field{}
	case at == offset:
		return field{kind: 'a'}
	case t.Ports != nil && (at == offset+size || at+size == offset): // address of the other end
		return field{kind: 'n'}
	}
	return field{}
}

func (t Traffic) compare(f field, op uint32, value []byte) (a Answer) {
	switch f.kind {
	case 'p':
		a = No
		if t.isFamily(value) {
			a = Yes
		}
	case 'q':
		a = No
		if slices.ContainsFunc(t.Ports, func(port string) bool { return (Traffic{Link: port}).isLink(value) }) {
			a = Perhaps
		}
	case 'l':
		a = No
		if t.isLink(value) {
			a = Yes
		}
	case 'i':
		a = No
		if bytes.Equal(value, binary.NativeEndian.AppendUint32(nil, uint32(t.Index))) {
			a = Yes
		}
	case 'a':
		a = t.within(f, value)
	default:
		return Perhaps
	}
	switch op {
	case unix.NFT_CMP_EQ:
		return a
	case unix.NFT_CMP_NEQ:
		return No - a // swaps Yes and No
	}
	return Perhaps
}

// isFamily reports whether value is the family of the containers' addresses, in netfilter's or
// in Ethernet's numbering.
func (t Traffic) isFamily(value []byte) bool {
	netfilter, ethernet := byte(unix.NFPROTO_IPV4), uint16(unix.ETH_P_IP)
	if t.Net.Addr().Is6() {
		netfilter, ethernet = unix.NFPROTO_IPV6, unix.ETH_P_IPV6
	}
	if len(value) == 2 {
		return binary.BigEndian.Uint16(value) == ethernet
	}
	return len(value) > 0 && value[0] == netfilter
}

// isLink reports whether a name, or the beginning of a name, matches the bridge.
func (t Traffic) isLink(value []byte) bool {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, t.Link)
	return bytes.HasPrefix(name, value)
}

// within reports whether all, none or some of the containers' addresses match a masked
// address.
func (t Traffic) within(f field, value []byte) Answer {
	mask := f.mask
	if mask == nil {
		mask = bytes.Repeat([]byte{0xff}, len(value))
	}
	if len(mask) != len(value) {
		return Perhaps
	}
	addr := t.Net.Masked().Addr().AsSlice()
	left := t.Net.Bits()
	is := Yes
	for i := range value {
		known := byte(0xff)
		if left < 8 {
			known <<= 8 - max(left, 0)
		}
		left -= bits.OnesCount8(known)
		if (addr[i]^value[i])&mask[i]&known != 0 {
			return No
		}
		if mask[i]&^known != 0 {
			is = Perhaps
		}
	}
	return is
}
