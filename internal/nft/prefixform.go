// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nft writes a prefix of whole bytes as a comparison of just these bytes, where we mask the
// address: `nft list ruleset` and `nft -f` turn our form into nft's.

// shortened rewrites prefixes in nft's form.
func shortened(exprs []Expr) (out []Expr) {
	for i := 0; i < len(exprs); i++ {
		if i+2 < len(exprs) {
			if load, cmp, ok := shortPrefix(exprs[i], exprs[i+1], exprs[i+2]); ok {
				out = append(out, load, cmp)
				i += 2
				continue
			}
		}
		out = append(out, exprs[i])
	}
	return out
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
	n := len(m) - len(bytes.TrimLeft(m, "\xff"))
	whole := n > 0 && len(value) == len(m) && len(bytes.Trim(m[n:], "\x00")) == 0
	if !whole || len(bytes.Trim(mask.Value(unix.NFTA_BITWISE_XOR), "\x00")) > 0 {
		return load, cmp, false
	}
	return load.with(unix.NFTA_PAYLOAD_LEN, binary.BigEndian.AppendUint32(nil, uint32(n))), cmp.with(unix.NFTA_CMP_DATA, dataOf(value[:n])), true
}

func dataOf(value []byte) []byte {
	b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_DATA_VALUE, Data: value}})
	if err != nil {
		return nil // longer than an attribute may be; no address is
	}
	return b
}

// with returns e with another value for one attribute.
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
