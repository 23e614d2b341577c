// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Attrs are the attributes of a message or expression. Their types are without NLA_F_NESTED and
// NLA_F_NET_BYTEORDER, so they can be compared.
type Attrs []netlink.Attribute

// attributes splits b into attributes, whose data is part of b. attributes returns none if b cannot
// be read. The library's reader copies the data, which took most of the time of reading a table.
func attributes(b []byte) (Attrs, error) {
	n, err := countAttributes(b)
	if n == 0 || err != nil {
		return nil, err
	}
	attrs := make(Attrs, 0, n)
	for len(b) > 0 {
		size := int(binary.NativeEndian.Uint16(b))
		typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		attrs = append(attrs, netlink.Attribute{Length: uint16(size), Type: typ, Data: b[unix.SizeofNlAttr:size:size]})
		b = b[min(align(size), len(b)):]
	}
	return attrs, nil
}

// countAttributes counts the attributes in b, and reports an error if one is longer than the rest of b.
func countAttributes(b []byte) (n int, err error) {
	for ; len(b) > 0; n++ {
		if len(b) < unix.SizeofNlAttr {
			return 0, errMalformed
		}
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return 0, errMalformed
		}
		b = b[min(align(size), len(b)):]
	}
	return n, nil
}

// message returns the attributes of an answer.
func message(m netlink.Message) (Attrs, error) {
	if len(m.Data) < 4 {
		return nil, fmt.Errorf("decode nftables answer: %w", errMalformed)
	}
	a, err := attributes(m.Data[4:])
	if err != nil {
		return nil, fmt.Errorf("decode nftables answer: %w", err)
	}
	return a, nil
}

// Attr returns an attribute, or nil if there is none of this type.
func (a Attrs) Attr(typ uint16) []byte {
	for _, at := range a {
		if at.Type == typ {
			return at.Data
		}
	}
	return nil
}

// Text returns an attribute that holds a string.
func (a Attrs) Text(typ uint16) string { return unix.ByteSliceToString(a.Attr(typ)) }

// Number returns an attribute that holds a number of 32 bits, or 0 if there is none.
func (a Attrs) Number(typ uint16) uint32 {
	b := a.Attr(typ)
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// Value returns the value of an attribute that holds nested data, or nil if it holds something
// else.
func (a Attrs) Value(typ uint16) []byte { return a.nested(typ).Attr(unix.NFTA_DATA_VALUE) }

// nested returns the attributes inside an attribute.
func (a Attrs) nested(typ uint16) Attrs {
	in, err := attributes(a.Attr(typ))
	if err != nil {
		return nil
	}
	return in
}

// Verdict returns the verdict of a rule: its code (unix.NFT_JUMP, 0 for drop, 1 for accept, …)
// and, for a jump, the chain. ok is false if the rule has no verdict.
func (r Rule) Verdict() (code int32, chain string, ok bool) {
	for _, e := range r.Exprs {
		if code, chain, ok := e.verdict(); ok {
			return code, chain, true
		}
	}
	return 0, "", false
}

func (e Expr) verdict() (code int32, chain string, ok bool) {
	if e.Name != "immediate" {
		return 0, "", false
	}
	return verdictIn(e.nested(unix.NFTA_IMMEDIATE_DATA).Attr(unix.NFTA_DATA_VERDICT))
}

// verdictIn reads a verdict from its attributes.
func verdictIn(b []byte) (code int32, chain string, ok bool) {
	a, err := attributes(b)
	if err != nil || len(a.Attr(unix.NFTA_VERDICT_CODE)) != 4 {
		return 0, "", false
	}
	return int32(a.Number(unix.NFTA_VERDICT_CODE)), a.Text(unix.NFTA_VERDICT_CHAIN), true
}

// JumpsTo reports whether a rule has a jump or goto to a chain.
func (r Rule) JumpsTo(chain string) bool {
	_, to, ok := r.Verdict()
	return ok && to == chain
}

// Has reports whether a rule has an expression with this name. For matches and targets of
// iptables ("match", "target"), kind must be the name of the match or target.
func (r Rule) Has(name, kind string) bool {
	for _, e := range r.Exprs {
		if e.Name == name && (kind == "" || e.Text(unix.NFTA_MATCH_NAME) == kind) {
			return true
		}
	}
	return false
}

// Comment returns the comment of a rule. Comment reads nft's user data and iptables' comment
// match.
func (r Rule) Comment() string {
	if c := commentIn(r.UserData, userdata.TypeComment); c != "" {
		return c
	}
	for _, e := range r.Exprs {
		if e.Name == "match" && e.Text(unix.NFTA_MATCH_NAME) == "comment" {
			return e.Text(unix.NFTA_MATCH_INFO)
		}
	}
	return ""
}

// Mentions reports whether a rule compares with exactly these bytes, or sends packets to them.
// The bytes may be an address.
func (r Rule) Mentions(data []byte) bool {
	for _, e := range r.Exprs {
		if e.Name == "cmp" && bytes.Equal(e.Value(unix.NFTA_CMP_DATA), data) ||
			e.Name == "immediate" && bytes.Equal(e.Value(unix.NFTA_IMMEDIATE_DATA), data) {
			return true
		}
	}
	return false
}

// Compared returns the values with which a rule compares.
func (r Rule) Compared() (values [][]byte) {
	for _, e := range r.Exprs {
		if e.Name == "cmp" {
			values = append(values, e.Value(unix.NFTA_CMP_DATA))
		}
	}
	return values
}
