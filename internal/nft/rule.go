// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Attr returns an attribute of an expression, nil when it has none of that type.
func (e Expr) Attr(typ uint16) []byte {
	for _, a := range e.Attrs {
		if a.Type == typ {
			return a.Data
		}
	}
	return nil
}

// Verdict returns where a rule ends: a code (unix.NFT_JUMP, 0 for drop, 1 for
// accept, …) and the chain of a jump. ok is false when it has no verdict.
func (r Rule) Verdict() (code int32, chain string, ok bool) {
	for _, e := range r.Exprs {
		if e.Name != "immediate" {
			continue
		}
		data, err := attributes(e.Attr(unix.NFTA_IMMEDIATE_DATA))
		if err != nil {
			continue
		}
		if code, chain, ok := verdictIn(Expr{Attrs: data}.Attr(unix.NFTA_DATA_VERDICT)); ok {
			return code, chain, true
		}
	}
	return 0, "", false
}

// verdictIn reads the attributes of a verdict.
func verdictIn(b []byte) (code int32, chain string, ok bool) {
	attrs, err := attributes(b)
	v := Expr{Attrs: attrs}
	raw := v.Attr(unix.NFTA_VERDICT_CODE)
	if err != nil || len(raw) != 4 {
		return 0, "", false
	}
	return int32(binary.BigEndian.Uint32(raw)), unix.ByteSliceToString(v.Attr(unix.NFTA_VERDICT_CHAIN)), true
}

// JumpsTo reports whether a rule has a jump or goto to a chain.
func (r Rule) JumpsTo(chain string) bool {
	_, to, ok := r.Verdict()
	return ok && to == chain
}

// Has reports whether a rule has an expression of that name; for iptables' matches and targets
// ("match", "target") it must also be of that kind.
func (r Rule) Has(name, kind string) bool {
	for _, e := range r.Exprs {
		if e.Name == name && (kind == "" || unix.ByteSliceToString(e.Attr(unix.NFTA_MATCH_NAME)) == kind) {
			return true
		}
	}
	return false
}

// Comment is the comment of a rule, in nft's user data or in iptables' comment match.
func (r Rule) Comment() string {
	if c := commentIn(r.UserData, userdata.TypeComment); c != "" {
		return c
	}
	for _, e := range r.Exprs {
		if e.Name == "match" && unix.ByteSliceToString(e.Attr(unix.NFTA_MATCH_NAME)) == "comment" {
			return unix.ByteSliceToString(e.Attr(unix.NFTA_MATCH_INFO))
		}
	}
	return ""
}

// Mentions reports whether a rule compares with, or sends to, exactly these bytes,
// such as an address.
func (r Rule) Mentions(data []byte) bool {
	for _, e := range r.Exprs {
		typ := uint16(unix.NFTA_CMP_DATA)
		switch e.Name {
		case "cmp":
		case "immediate":
			typ = unix.NFTA_IMMEDIATE_DATA
		default:
			continue
		}
		value, err := attributes(e.Attr(typ))
		if err == nil && bytes.Equal(Expr{Attrs: value}.Attr(unix.NFTA_DATA_VALUE), data) {
			return true
		}
	}
	return false
}

// Compared lists the values that a rule compares with.
func (r Rule) Compared() (values [][]byte) {
	for _, e := range r.Exprs {
		if e.Name != "cmp" {
			continue
		}
		value, err := attributes(e.Attr(unix.NFTA_CMP_DATA))
		if err == nil {
			values = append(values, Expr{Attrs: value}.Attr(unix.NFTA_DATA_VALUE))
		}
	}
	return values
}
