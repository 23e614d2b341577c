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

// sameAttr reports whether an attribute has the wanted value. For a verdict, the library sets a flag in
// the type within the value, and the kernel does not.
func (e Expr) sameAttr(typ uint16, want []byte) bool {
	have := e.Attr(typ)
	if bytes.Equal(have, want) {
		return true
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

// For a prefix of whole bytes, nft compares only these bytes, but we mask the address. `nft
// list ruleset` followed by `nft -f` turns our form into nft's.

// shortened rewrites prefix comparisons in nft's form.
func shortened(exprs []Expr) []Expr {
	for i := range max(len(exprs)-2, 0) {
		if load, cmp, ok := shortPrefix(exprs[i], exprs[i+1], exprs[i+2]); ok {
			return append(append(exprs[:i:i], load, cmp), shortened(exprs[i+3:])...)
		}
	}
	return exprs
}

func shortPrefix(load, mask, cmp Expr) (short, with Expr, ok bool) {
	if load.Name != "payload" || mask.Name != "bitwise" || cmp.Name != "cmp" || cmp.Number(unix.NFTA_CMP_OP) != unix.NFT_CMP_EQ {
		return load, cmp, false
	}
	reg := load.Number(unix.NFTA_PAYLOAD_DREG)
	if reg != mask.Number(unix.NFTA_BITWISE_SREG) || reg != mask.Number(unix.NFTA_BITWISE_DREG) || reg != cmp.Number(unix.NFTA_CMP_SREG) {
		return load, cmp, false
	}
	m, value := mask.Value(unix.NFTA_BITWISE_MASK), cmp.Value(unix.NFTA_CMP_DATA)
	n := 0
	for n < len(m) && m[n] == 0xff { // bytes.TrimLeft would let 0xff in its cutset match any byte that is not valid UTF-8
		n++
	}
	whole := n > 0 && len(value) == len(m) && load.Number(unix.NFTA_PAYLOAD_LEN) == uint32(len(m)) && isZero(m[n:]) && isZero(value[n:])
	if !whole || !isZero(mask.Value(unix.NFTA_BITWISE_XOR)) {
		return load, cmp, false
	}
	return load.with(unix.NFTA_PAYLOAD_LEN, binary.BigEndian.AppendUint32(nil, uint32(n))), cmp.with(unix.NFTA_CMP_DATA, dataOf(value[:n])), true
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
