// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// google/nftables v0.3.0 writes the direction of a ct expression in four bytes, but the kernel
// uses one byte (NFTA_CT_DIRECTION is NLA_U8). So the library cannot list a chain with `ct
// original`, and the kernel logs a warning when it gets such a rule from the library.
// Therefore we compare rules as attributes and correct the direction before we send a rule. It also writes none for the keys
// of one family's addresses (ct original ip saddr).

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
// It is for long chains in which the comment identifies a rule.
func (c *Conn) ListHandles(family nftables.TableFamily, table, chain string) ([]Rule, error) {
	return c.listRules(family, table, chain, func(*Rule, []byte) error { return nil })
}

func (c *Conn) listRules(family nftables.TableFamily, table, chain string, exprs func(*Rule, []byte) error) ([]Rule, error) {
	msgs, err := c.list(query{get: unix.NFT_MSG_GETRULE, family: family, table: table, within: unix.NFTA_RULE_CHAIN, name: chain})
	if err != nil {
		return nil, err
	}
	out := make([]Rule, 0, len(msgs))
	for _, m := range msgs {
		r, err := decodeRule(m, exprs)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// decodeRule reads an NFT_MSG_NEWRULE message. The rule's bytes are part of the message.
func decodeRule(m netlink.Message, exprs func(*Rule, []byte) error) (r Rule, err error) {
	if m.Header.Type != msgNewRule {
		return r, fmt.Errorf("decode rule: type %v: %w", m.Header.Type, errMalformed)
	}
	a, err := message(m)
	if err != nil {
		return r, fmt.Errorf("decode rule: %w", err)
	}
	r = Rule{Handle: a.long(unix.NFTA_RULE_HANDLE), Chain: a.Text(unix.NFTA_RULE_CHAIN), UserData: a.Attr(unix.NFTA_RULE_USERDATA)}
	if err := exprs(&r, a.Attr(unix.NFTA_RULE_EXPRESSIONS)); err != nil {
		return r, fmt.Errorf("decode rule: %w", err)
	}
	return r, nil
}

func (r *Rule) decodeExprs(b []byte) error {
	list, err := attributes(b)
	r.Exprs = make([]Expr, len(list))
	for i := range list {
		if r.Exprs[i], err = decodeExpr(list[i].Data); err != nil {
			return err
		}
	}
	return err
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

// directed returns an expression that loads a field of a connection's tuple: of the packets that a client sends, or with reply of
// those that it gets. The library writes a direction only for keys that have none of a family's own, so the key is in the
// direction until correctCt has the message.
func directed(key uint32, reply bool, reg uint32) *expr.Ct {
	ct := &expr.Ct{Key: expr.CtKeyPROTODST, Register: reg, Direction: key << 8}
	if reply {
		ct.Direction++ // IP_CT_DIR_REPLY
	}
	return ct
}

// realKey returns the key and the direction of what directed made, and of other expressions with a direction.
func realKey(key, direction uint32) (uint32, byte) {
	if direction>>8 != 0 {
		key = direction >> 8
	}
	return key, byte(direction)
}

// correctCt corrects the direction of ct expressions in a message, and the key. The attribute keeps its size: 4 bytes of
// header, a value of 1 or 4 bytes, padding to 8 bytes.
func correctCt(m netlink.Message) error {
	if m.Header.Type != msgNewRule {
		return nil
	}
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.NFTA_EXPR_NAME, "ct")
	name, err := ae.Encode()
	if err != nil {
		return fmt.Errorf("encode ct: %w", err)
	}
	for rest := m.Data; ; {
		at := bytes.Index(rest, name)
		if at < 0 {
			return nil
		}
		rest = rest[at+len(name):]
		correctDirection(rest)
	}
}

// correctDirection corrects the attributes of a ct expression if it has a direction: 4 bytes of header, and then the key, the
// register and the direction, each of 8 bytes.
func correctDirection(b []byte) {
	const key, direction, end = 4 + 4, 4 + 8 + 8, 4 + 8 + 8 + 8
	at := binary.NativeEndian.Uint16
	if len(b) < end || at(b) != end || at(b[direction+2:]) != unix.NFTA_CT_DIRECTION || at(b[direction:]) != 8 {
		return
	}
	value := b[direction+4 : end]
	real, dir := realKey(binary.BigEndian.Uint32(b[key:]), binary.BigEndian.Uint32(value))
	binary.BigEndian.PutUint32(b[key:], real)
	binary.NativeEndian.PutUint16(b[direction:], 5)
	copy(value, []byte{dir, 0, 0, 0})
}
