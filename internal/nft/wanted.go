// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// wanted encodes the expressions that a rule should have, so that they can be compared with the
// kernel's. It does what expr.Marshal and decodeExpr do, but one wanted serves all rules of a table
// and needs no memory for each attribute: CHECK compares the whole table.
type wanted struct {
	exprs []Expr
	attrs Attrs
	bytes []byte
}

// is works like sameRule.
func (w *wanted) is(family byte, have []Expr, want []expr.Any) bool {
	w.exprs, w.attrs, w.bytes = w.exprs[:0], w.attrs[:0], w.bytes[:0]
	for _, e := range want {
		if err := w.add(family, e); err != nil {
			return false
		}
	}
	return slices.EqualFunc(have, w.exprs, Expr.is) || slices.EqualFunc(oneForm(have), oneForm(w.exprs), Expr.is)
}

// add encodes one expression.
func (w *wanted) add(family byte, e expr.Any) error {
	from := len(w.attrs)
	if name := w.encode(e); name != "" {
		w.exprs = append(w.exprs, Expr{Name: name, Attrs: w.attrs[from:len(w.attrs):len(w.attrs)]})
		return nil
	}
	b, err := expr.Marshal(family, e)
	if err != nil {
		return err
	}
	x, err := decodeExpr(b)
	w.exprs = append(w.exprs, x)
	return err
}

// encode encodes the expressions that our rules have most often, and returns the kernel's name of
// the expression. For any other expression it returns "".
func (w *wanted) encode(e expr.Any) (name string) {
	switch e := e.(type) {
	case *expr.Meta:
		return w.meta(e)
	case *expr.Cmp:
		w.numbers(unix.NFTA_CMP_SREG, e.Register, unix.NFTA_CMP_OP, uint32(e.Op))
		w.value(unix.NFTA_CMP_DATA, e.Data)
		return "cmp"
	case *expr.Payload:
		return w.payload(e)
	case *expr.Bitwise:
		w.numbers(unix.NFTA_BITWISE_SREG, e.SourceRegister, unix.NFTA_BITWISE_DREG, e.DestRegister, unix.NFTA_BITWISE_LEN, e.Len)
		w.value(unix.NFTA_BITWISE_MASK, e.Mask)
		w.value(unix.NFTA_BITWISE_XOR, e.Xor)
		return "bitwise"
	case *expr.Lookup:
		return w.lookup(e)
	case *expr.Ct:
		return w.ct(e)
	case *expr.Verdict:
		return w.verdict(e)
	}
	return ""
}

func (w *wanted) meta(e *expr.Meta) string {
	if e.SourceRegister {
		return ""
	}
	w.numbers(unix.NFTA_META_KEY, uint32(e.Key), unix.NFTA_META_DREG, e.Register)
	return "meta"
}

func (w *wanted) payload(e *expr.Payload) string {
	if e.OperationType != expr.PayloadLoad || e.CsumType != 0 {
		return ""
	}
	w.numbers(unix.NFTA_PAYLOAD_DREG, e.DestRegister, unix.NFTA_PAYLOAD_BASE, uint32(e.Base),
		unix.NFTA_PAYLOAD_OFFSET, e.Offset, unix.NFTA_PAYLOAD_LEN, e.Len)
	return "payload"
}

// ct encodes what directed returns. The library writes other expressions of connection tracking.
func (w *wanted) ct(e *expr.Ct) string {
	if e.SourceRegister || e.Direction == 0 {
		return ""
	}
	key, direction := realKey(uint32(e.Key), e.Direction)
	w.numbers(unix.NFTA_CT_KEY, key, unix.NFTA_CT_DREG, e.Register)
	from := len(w.bytes)
	w.bytes = append(w.bytes, direction)
	w.attr(unix.NFTA_CT_DIRECTION, from)
	return "ct"
}

func (w *wanted) lookup(e *expr.Lookup) string {
	if e.SourceRegister != 0 {
		w.numbers(unix.NFTA_LOOKUP_SREG, e.SourceRegister)
	}
	if e.IsDestRegSet {
		w.numbers(unix.NFTA_LOOKUP_DREG, e.DestRegister)
	}
	if e.Invert {
		w.numbers(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
	}
	from := len(w.bytes)
	w.bytes = append(append(w.bytes, e.SetName...), 0)
	w.attr(unix.NFTA_LOOKUP_SET, from)
	w.numbers(unix.NFTA_LOOKUP_SET_ID, e.SetID)
	return "lookup"
}

// verdict encodes an `immediate` that loads a verdict into its register.
func (w *wanted) verdict(e *expr.Verdict) string {
	w.numbers(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
	from := len(w.bytes)
	size := 2*unix.SizeofNlAttr + 4
	if e.Chain != "" {
		size += align(unix.SizeofNlAttr + len(e.Chain) + 1)
	}
	w.header(size, unix.NFTA_DATA_VERDICT)
	w.header(unix.SizeofNlAttr+4, unix.NFTA_VERDICT_CODE)
	w.bytes = binary.BigEndian.AppendUint32(w.bytes, uint32(e.Kind))
	if e.Chain != "" {
		w.header(unix.SizeofNlAttr+len(e.Chain)+1, unix.NFTA_VERDICT_CHAIN)
		w.bytes = append(w.bytes, e.Chain...)
		w.bytes = append(w.bytes, make([]byte, from+size-len(w.bytes))...)
	}
	w.attr(unix.NFTA_IMMEDIATE_DATA, from)
	return "immediate"
}

// numbers adds attributes that hold numbers of 32 bits, each a type and a number.
func (w *wanted) numbers(pairs ...uint32) {
	for i := 0; i < len(pairs); i += 2 {
		from := len(w.bytes)
		w.bytes = binary.BigEndian.AppendUint32(w.bytes, pairs[i+1])
		w.attr(uint16(pairs[i]), from)
	}
}

// value adds an attribute that holds nested data.
func (w *wanted) value(typ uint16, data []byte) {
	from := len(w.bytes)
	w.header(unix.SizeofNlAttr+len(data), unix.NFTA_DATA_VALUE)
	w.bytes = append(w.bytes, data...)
	w.bytes = append(w.bytes, make([]byte, align(len(data))-len(data))...)
	w.attr(typ, from)
}

// header adds the head of an attribute inside another.
func (w *wanted) header(size int, typ uint16) {
	w.bytes = binary.NativeEndian.AppendUint16(w.bytes, uint16(size))
	w.bytes = binary.NativeEndian.AppendUint16(w.bytes, typ)
}

// attr adds the attribute whose value are the bytes behind from.
func (w *wanted) attr(typ uint16, from int) {
	value := w.bytes[from:len(w.bytes):len(w.bytes)]
	w.attrs = append(w.attrs, netlink.Attribute{Type: typ, Data: value})
}
