// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// google/nftables v0.3.0 writes the direction of a ct expression in four bytes, but the kernel
// uses one byte (NFTA_CT_DIRECTION is NLA_U8). So the library cannot list a chain with `ct
// original`, and the kernel logs a warning when it gets such a rule from the library.
// Therefore we compare rules as attributes and correct the direction before we send a rule.

const msgNewRule = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE)

// Rule is a rule of any table, as the kernel stores it.
type Rule struct {
	Handle   uint64
	Chain    string
	UserData []byte
	Exprs    []Expr
}

// Expr is one expression of a rule. Expr has the kernel's name of the expression and its
// attributes.
type Expr struct {
	Name string
	Attrs
}

// String prints names and attributes, without the values of counters.
func (r Rule) String() string {
	words := make([]string, len(r.Exprs))
	for i, e := range r.Exprs {
		words[i] = e.String()
	}
	return strings.Join(words, " ")
}

// String prints the name with the verdict or the attributes.
func (e Expr) String() string {
	if e.Name == "counter" {
		return e.Name
	}
	if code, chain, ok := e.verdict(); ok {
		return fmt.Sprintf("verdict(%d %s)", code, chain)
	}
	text := e.Name + "("
	for _, a := range e.Attrs {
		text += fmt.Sprintf(" %d:%x", a.Type, a.Data)
	}
	return text + " )"
}

// ListRules returns the rules of a chain of any program's table, in order. For a missing chain
// it returns none.
func (c *Conn) ListRules(family nftables.TableFamily, table, chain string) ([]Rule, error) {
	return c.listRules(family, table, chain, (*Rule).decodeExprs)
}

// ListHandles works like ListRules, but without the expressions, which take most of the time.
// ListHandles serves long chains in which the comment identifies a rule.
func (c *Conn) ListHandles(family nftables.TableFamily, table, chain string) ([]Rule, error) {
	return c.listRules(family, table, chain, func(*Rule, *netlink.AttributeDecoder) error { return nil })
}

func (c *Conn) listRules(family nftables.TableFamily, table, chain string, exprs func(*Rule, *netlink.AttributeDecoder) error) ([]Rule, error) {
	msgs, err := c.list(query{get: unix.NFT_MSG_GETRULE, family: family, table: table, within: unix.NFTA_RULE_CHAIN, name: chain})
	if err != nil {
		return nil, err
	}
	var out []Rule
	for _, m := range msgs {
		r, err := decodeRule(m, exprs)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// decodeRule reads an NFT_MSG_NEWRULE message.
func decodeRule(m netlink.Message, exprs func(*Rule, *netlink.AttributeDecoder) error) (r Rule, err error) {
	if m.Header.Type != msgNewRule || len(m.Data) < 4 {
		return r, fmt.Errorf("decode rule: type %v, %d bytes: %w", m.Header.Type, len(m.Data), errMalformed)
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return r, fmt.Errorf("decode rule: %w", err)
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_HANDLE:
			r.Handle = ad.Uint64()
		case unix.NFTA_RULE_CHAIN:
			r.Chain = ad.String()
		case unix.NFTA_RULE_USERDATA:
			r.UserData = ad.Bytes()
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(list *netlink.AttributeDecoder) error { return exprs(&r, list) })
		}
	}
	if err := ad.Err(); err != nil {
		return r, fmt.Errorf("decode rule: %w", err)
	}
	return r, nil
}

func (r *Rule) decodeExprs(list *netlink.AttributeDecoder) error {
	for list.Next() {
		e, err := decodeExpr(list.Bytes())
		if err != nil {
			return err
		}
		r.Exprs = append(r.Exprs, e)
	}
	return nil
}

// decodeExpr reads the name and the attributes of an expression.
func decodeExpr(b []byte) (Expr, error) {
	attrs, err := attributes(b)
	var e Expr
	for _, a := range attrs {
		switch a.Type {
		case unix.NFTA_EXPR_NAME:
			e.Name = unix.ByteSliceToString(a.Data)
		case unix.NFTA_EXPR_DATA:
			e.Attrs, err = attributes(a.Data)
		}
	}
	return e, err
}

// Is reports whether a rule of the kernel has the wanted expressions, and no others.
func (r Rule) Is(want []expr.Any) bool {
	return sameRule(byte(nftables.TableFamilyINet), r.Exprs, want)
}

// sameRule reports whether a rule of the kernel is the wanted rule: it has every attribute
// that we write, and its other attributes are zero.
func sameRule(family byte, have []Expr, want []expr.Any) bool {
	wanted := make([]Expr, len(want))
	for i, e := range want {
		b, err := expr.Marshal(family, e)
		if err != nil {
			return false
		}
		if wanted[i], err = decodeExpr(b); err != nil {
			return false
		}
	}
	return slices.EqualFunc(shortened(have), shortened(wanted), Expr.is)
}

func (e Expr) is(want Expr) bool {
	if e.Name != want.Name {
		return false
	}
	left := make(map[uint16][]byte, len(e.Attrs))
	for _, a := range e.Attrs {
		if e.Name != "nat" || a.Type != unix.NFTA_NAT_FLAGS { // the kernel adds flags for the address and the port
			left[a.Type] = a.Data
		}
	}
	for _, a := range want.Attrs {
		switch {
		case e.Name == "lookup" && a.Type == unix.NFTA_LOOKUP_SET_ID:
			continue // only valid within a transaction
		case e.Name == "nat" && a.Type == unix.NFTA_NAT_FLAGS:
			continue
		case e.Name == "ct" && a.Type == unix.NFTA_CT_DIRECTION:
			a.Data = a.Data[:1]
		case e.Name == "flow_offload":
			a.Data = append(bytes.Clone(a.Data), 0) // the kernel ends the name of the flowtable
		}
		if !sameAttr(left[a.Type], a.Data) {
			return false
		}
		delete(left, a.Type)
	}
	for _, data := range left {
		if len(bytes.Trim(data, "\x00")) > 0 {
			return false
		}
	}
	return true
}

// sameAttr compares two values. The types of nested values may differ in their flags.
func sameAttr(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, err1 := attributes(a)
	y, err2 := attributes(b)
	if err1 != nil || err2 != nil || len(x) != len(y) || len(x) == 0 {
		return false
	}
	for i := range x {
		if x[i].Type != y[i].Type || !sameAttr(x[i].Data, y[i].Data) {
			return false
		}
	}
	return true
}

// oneByteDirection corrects the direction of ct expressions in a message. The attribute keeps
// its size: 4 bytes of header, a value of 1 or 4 bytes, padding to 8 bytes.
func oneByteDirection(m netlink.Message) error {
	if m.Header.Type != msgNewRule {
		return nil
	}
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.NFTA_EXPR_NAME, "ct")
	name, err := ae.Encode()
	if err != nil {
		return fmt.Errorf("encode ct: %w", err)
	}
	wrong, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_CT_DIRECTION, Data: make([]byte, 4)}})
	if err != nil {
		return fmt.Errorf("encode ct direction: %w", err)
	}
	right, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_CT_DIRECTION, Data: make([]byte, 1)}})
	if err != nil || len(right) != len(wrong) {
		return errors.Join(err, syscall.EINVAL)
	}
	at := bytes.Index(m.Data, name)
	if at < 0 {
		return nil
	}
	if i := bytes.Index(m.Data[at:], wrong); i >= 0 {
		copy(m.Data[at+i:], right)
	}
	return nil
}

// For a prefix of whole bytes, nft compares only these bytes, but we mask the address. `nft
// list ruleset` followed by `nft -f` turns our form into nft's.

// shortened rewrites prefix comparisons in nft's form.
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
	n := 0
	for n < len(m) && m[n] == 0xff { // bytes.TrimLeft would take 0xff in its cutset for any byte that is no character
		n++
	}
	whole := n > 0 && len(value) == len(m) && len(bytes.Trim(m[n:], "\x00")) == 0
	if !whole || len(bytes.Trim(mask.Value(unix.NFTA_BITWISE_XOR), "\x00")) > 0 {
		return load, cmp, false
	}
	return load.with(unix.NFTA_PAYLOAD_LEN, binary.BigEndian.AppendUint32(nil, uint32(n))), cmp.with(unix.NFTA_CMP_DATA, dataOf(value[:n])), true
}

func dataOf(value []byte) []byte {
	b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_DATA_VALUE, Data: value}})
	if err != nil {
		return nil // longer than an attribute may be; addresses are shorter
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
