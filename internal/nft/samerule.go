// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Is reports whether a rule of the kernel has the wanted expressions, and no others.
func (r Rule) Is(want []expr.Any) bool {
	return sameRule(byte(nftables.TableFamilyINet), r.Exprs, want)
}

// sameRule reports whether a rule of the kernel is the wanted rule: it has every attribute
// that we write, and its other attributes are zero.
func sameRule(family byte, have []Expr, want []expr.Any) bool {
	return new(wanted).is(family, have, want)
}

// is reports whether an expression of the kernel is the wanted one.
func (e Expr) is(want Expr) bool {
	if e.Name != want.Name {
		return false
	}
	for _, a := range want.Attrs {
		if !e.free(a.Type) && !e.sameAttr(a.Type, e.stored(a)) {
			return false
		}
	}
	return !slices.ContainsFunc(e.Attrs, func(a netlink.Attribute) bool {
		fixed := !e.free(a.Type) && want.Attr(a.Type) != nil
		return !fixed && !e.added(a.Type) && !zero(a.Data)
	})
}

// free reports whether an attribute that we write may have another value in the kernel.
func (e Expr) free(typ uint16) bool {
	return e.added(typ) || e.unsaid(typ) || e.Name == "lookup" && typ == unix.NFTA_LOOKUP_SET_ID || e.Name == "dynset" && typ == unix.NFTA_DYNSET_SET_ID // only valid within a transaction
}

// unsaid reports whether the kernel does not return an attribute that we write: a TCP reset has no code.
func (e Expr) unsaid(typ uint16) bool {
	return e.Name == "reject" && typ == unix.NFTA_REJECT_ICMP_CODE && e.Number(unix.NFTA_REJECT_TYPE) == unix.NFT_REJECT_TCP_RST
}

// added reports whether the kernel adds flags to an attribute: for the address and the port.
func (e Expr) added(typ uint16) bool { return e.Name == "nat" && typ == unix.NFTA_NAT_FLAGS }

// stored returns the value that the kernel has for an attribute that we write.
func (e Expr) stored(a netlink.Attribute) []byte {
	switch {
	case e.Name == "ct" && a.Type == unix.NFTA_CT_DIRECTION:
		return a.Data[:1]
	case e.Name == "flow_offload":
		return append(bytes.Clone(a.Data), 0) // the kernel ends the name of the flowtable
	}
	return a.Data
}

// zero reports whether all bytes are 0.
func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// sameAttr reports whether an attribute has the wanted value. An expression for each element of a set is compared as
// others are. For a verdict, the library sets a flag in
// the type within the value, and the kernel does not.
func (e Expr) sameAttr(typ uint16, want []byte) bool {
	have := e.Attr(typ)
	if bytes.Equal(have, want) {
		return true
	}
	if e.Name == "dynset" && typ == unix.NFTA_DYNSET_EXPR {
		x, err1 := decodeExpr(have)
		y, err2 := decodeExpr(want)
		return err1 == nil && err2 == nil && x.is(y)
	}
	if e.Name != "immediate" || typ != unix.NFTA_IMMEDIATE_DATA {
		return false
	}
	x, err1 := attributes(have)
	y, err2 := attributes(want)
	return err1 == nil && err2 == nil && slices.EqualFunc(x, y, func(x, y netlink.Attribute) bool {
		return x.Type == y.Type && bytes.Equal(x.Data, y.Data)
	})
}

// nft has other forms of some comparisons, with the same meaning. `nft list ruleset` followed by `nft -f` turns our forms
// into nft's. Those of nft 1.0.6 and of 1.1 differ.

// oneForm rewrites the comparisons of a rule in one of these forms. A rule that has it is returned as it is.
func oneForm(exprs []Expr) []Expr { return shortForm(familyFirst(exprs)) }

func shortForm(exprs []Expr) []Expr {
	for i := range exprs {
		for _, form := range [...]func([]Expr) (short []Expr, n int){shortPrefix, oneRange, oneValue, shortPresence, adjacent} {
			if short, n := form(exprs[i:]); n > 0 {
				return append(exprs[:i:i], shortForm(append(short, exprs[i+n:]...))...)
			}
		}
	}
	return exprs
}

// familyFirst moves the comparison of the address family to the begin of a rule, where we have it. nft leaves it out if a
// header of the family is read later, and puts it before that when it loads the rule. The move changes nothing if there are
// only complete comparisons before it, and if what follows does not read its register.
func familyFirst(exprs []Expr) []Expr {
	for i := 1; i < len(exprs)-2; i++ {
		load, cmp, next := exprs[i], exprs[i+1], exprs[i+2]
		switch {
		case !slices.Contains([]string{"meta", "payload", "bitwise", "cmp", "range"}, exprs[i-1].Name):
			return exprs
		case load.Name != "meta" || load.Number(unix.NFTA_META_KEY) != unix.NFT_META_NFPROTO || cmp.Name != "cmp":
		case exprs[i-1].Name != "cmp" && exprs[i-1].Name != "range" || !next.loads(load.Number(unix.NFTA_META_DREG)):
			return exprs
		default:
			return slices.Concat(exprs[i:i+2], exprs[:i], exprs[i+2:])
		}
	}
	return exprs
}

// loads reports whether an expression writes a register and reads none.
func (e Expr) loads(reg uint32) bool {
	return e.Name == "payload" && e.Number(unix.NFTA_PAYLOAD_DREG) == reg || e.Name == "meta" && e.Number(unix.NFTA_META_DREG) == reg
}

// shortPrefix loads and compares only the bytes of a prefix of whole bytes, where we mask the address.
func shortPrefix(exprs []Expr) (short []Expr, n int) {
	if len(exprs) < 3 {
		return nil, 0
	}
	load, mask, cmp := exprs[0], exprs[1], exprs[2]
	if load.Name != "payload" || mask.Name != "bitwise" || cmp.Name != "cmp" || cmp.Number(unix.NFTA_CMP_OP) > unix.NFT_CMP_NEQ {
		return nil, 0
	}
	reg := load.Number(unix.NFTA_PAYLOAD_DREG)
	if reg != mask.Number(unix.NFTA_BITWISE_SREG) || reg != mask.Number(unix.NFTA_BITWISE_DREG) || reg != cmp.Number(unix.NFTA_CMP_SREG) {
		return nil, 0
	}
	m, value := mask.Value(unix.NFTA_BITWISE_MASK), cmp.Value(unix.NFTA_CMP_DATA)
	for n < len(m) && m[n] == 0xff { // bytes.TrimLeft would let 0xff in its cutset match any byte that is not valid UTF-8
		n++
	}
	whole := n > 0 && len(value) == len(m) && load.Number(unix.NFTA_PAYLOAD_LEN) == uint32(len(m)) && isZero(m[n:]) && isZero(value[n:])
	if !whole || !isZero(mask.Value(unix.NFTA_BITWISE_XOR)) {
		return nil, 0
	}
	return []Expr{load.with(unix.NFTA_PAYLOAD_LEN, binary.BigEndian.AppendUint32(nil, uint32(n))), cmp.with(unix.NFTA_CMP_DATA, dataOf(value[:n]))}, 3
}

// oneRange compares with a range, which nft 1.0.6 writes as two comparisons.
func oneRange(exprs []Expr) (short []Expr, n int) {
	if len(exprs) < 2 {
		return nil, 0
	}
	from, to := exprs[0], exprs[1]
	if from.Name != "cmp" || to.Name != "cmp" || from.Number(unix.NFTA_CMP_OP) != unix.NFT_CMP_GTE || to.Number(unix.NFTA_CMP_OP) != unix.NFT_CMP_LTE ||
		from.Number(unix.NFTA_CMP_SREG) != to.Number(unix.NFTA_CMP_SREG) || len(from.Attrs) != 3 || len(to.Attrs) != 3 {
		return nil, 0
	}
	r := Expr{Name: "range", Attrs: Attrs{
		{Type: unix.NFTA_RANGE_SREG, Data: from.Attr(unix.NFTA_CMP_SREG)}, {Type: unix.NFTA_RANGE_OP, Data: make([]byte, 4)}, // NFT_RANGE_EQ
		{Type: unix.NFTA_RANGE_FROM_DATA, Data: from.Attr(unix.NFTA_CMP_DATA)}, {Type: unix.NFTA_RANGE_TO_DATA, Data: to.Attr(unix.NFTA_CMP_DATA)},
	}}
	if one, _ := oneValue([]Expr{r}); one != nil {
		return one, 2
	}
	return []Expr{r}, 2
}

// oneValue compares with the value of a range of one value (nft 1.1). The types of the attributes of "range" and "cmp" are the
// same, and so are the numbers of their operators.
func oneValue(exprs []Expr) (short []Expr, n int) {
	r := exprs[0]
	if value := r.Value(unix.NFTA_RANGE_FROM_DATA); r.Name != "range" || len(value) == 0 || !bytes.Equal(value, r.Value(unix.NFTA_RANGE_TO_DATA)) {
		return nil, 0
	}
	cmp := Expr{Name: "cmp"}
	for _, a := range r.Attrs {
		if a.Type != unix.NFTA_RANGE_TO_DATA {
			cmp.Attrs = append(cmp.Attrs, a)
		}
	}
	return []Expr{cmp}, 1
}

// adjacent loads and compares two fields at once that follow each other in a header.
func adjacent(exprs []Expr) (short []Expr, n int) {
	if len(exprs) < 4 {
		return nil, 0
	}
	load, cmp, next, last := exprs[0], exprs[1], exprs[2], exprs[3]
	if !fieldIs(load, cmp) || !fieldIs(next, last) || load.Number(unix.NFTA_PAYLOAD_DREG) != next.Number(unix.NFTA_PAYLOAD_DREG) ||
		load.Number(unix.NFTA_PAYLOAD_BASE) != next.Number(unix.NFTA_PAYLOAD_BASE) {
		return nil, 0
	}
	size := load.Number(unix.NFTA_PAYLOAD_LEN)
	if load.Number(unix.NFTA_PAYLOAD_OFFSET)+size != next.Number(unix.NFTA_PAYLOAD_OFFSET) {
		return nil, 0
	}
	size += next.Number(unix.NFTA_PAYLOAD_LEN)
	value := slices.Concat(cmp.Value(unix.NFTA_CMP_DATA), last.Value(unix.NFTA_CMP_DATA))
	return []Expr{load.with(unix.NFTA_PAYLOAD_LEN, binary.BigEndian.AppendUint32(nil, size)), cmp.with(unix.NFTA_CMP_DATA, dataOf(value))}, 4
}

// fieldIs reports whether two expressions compare a field of a header with a value, and do nothing else.
func fieldIs(load, cmp Expr) bool {
	return load.Name == "payload" && len(load.Attrs) == 4 && load.Number(unix.NFTA_PAYLOAD_DREG) != 0 && cmp.Name == "cmp" && len(cmp.Attrs) == 3 &&
		cmp.Number(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ && cmp.Number(unix.NFTA_CMP_SREG) == load.Number(unix.NFTA_PAYLOAD_DREG) &&
		len(cmp.Value(unix.NFTA_CMP_DATA)) == int(load.Number(unix.NFTA_PAYLOAD_LEN))
}

// shortPresence compares one byte of the answer whether there is a route (nft 1.1.7), and not the whole register. The answer is 0 or
// 1, and the first byte is the lowest one on all machines that we build for. Behind any other expression the length counts.
func shortPresence(exprs []Expr) (short []Expr, n int) {
	if len(exprs) < 2 {
		return nil, 0
	}
	fib, cmp := exprs[0], exprs[1]
	if fib.Name != "fib" || fib.Number(unix.NFTA_FIB_FLAGS)&unix.NFTA_FIB_F_PRESENT == 0 || cmp.Name != "cmp" || fib.Number(unix.NFTA_FIB_DREG) != cmp.Number(unix.NFTA_CMP_SREG) {
		return nil, 0
	}
	value := cmp.Value(unix.NFTA_CMP_DATA)
	if len(value) != 4 || !isZero(value[1:]) {
		return nil, 0
	}
	return []Expr{fib, cmp.with(unix.NFTA_CMP_DATA, dataOf(value[:1]))}, 2
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

func dataOf(value []byte) []byte {
	b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_DATA_VALUE, Data: value}})
	if err != nil {
		return nil // only if value is too long for an attribute; addresses are not
	}
	return b
}

// with returns a copy of e in which one attribute has another value.
func (e Expr) with(typ uint16, data []byte) Expr {
	out := Expr{Name: e.Name}
	for _, a := range e.Attrs {
		if a.Type == typ {
			a.Data = data
		}
		out.Attrs = append(out.Attrs, a)
	}
	return out
}
