// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// portmap supports these conditions and their negations:
//
//	nft                                        iptables
//	ip saddr|daddr [!=] ADDR[/LEN]  (ip6 …)    [!] -s|-d ADDR[/LEN]
//	[meta] iifname [!=] NAME|PREFIX*           [!] -i NAME|PREFIX+
//	[meta] l4proto [!=] PROTO                  [!] -p PROTO
//	tcp|udp|sctp|th dport|sport [!=] N[-N]     [!] --dport|--sport N[:N]  (with -p; -m tcp and the like are ignored)
//
// In nft's forms, == is allowed before the value. As in the reference, "!" may come before or after the field.
// Everything else is refused, because ignoring a condition would publish a port to more clients than the operator
// wants.

// errCondition is part of every refusal.
var errCondition = errors.New("not a supported condition (supported: ip saddr/daddr, iifname, meta l4proto, " +
	"tcp/udp/sctp dport/sport; -s, -d, -i, -p, --dport, --sport; each with ! or !=)")

// condParser reads tokens one after the other.
type condParser struct {
	tokens []string
	v6     bool
	out    match
}

// parseConditions compiles the conditions of one address family.
func parseConditions(tokens []string, v6 bool) (match, error) {
	p := &condParser{tokens: strings.Fields(strings.Join(tokens, " ")), v6: v6}
	for len(p.tokens) > 0 {
		if err := p.one(); err != nil {
			return nil, err
		}
	}
	return p.out, nil
}

// next returns the next token and moves on. At the end it returns "".
func (p *condParser) next() string {
	if len(p.tokens) == 0 {
		return ""
	}
	t := p.tokens[0]
	p.tokens = p.tokens[1:]
	return strings.Trim(t, "\"")
}

// negated reads an operator, if the next token is one, and reports whether it negates.
func (p *condParser) negated() bool {
	if len(p.tokens) == 0 {
		return false
	}
	switch p.tokens[0] {
	case "!", "!=":
		p.next()
		return true
	case "==":
		p.next()
	}
	return false
}

// one reads one condition.
func (p *condParser) one() error {
	not := p.negated()
	word := p.next()
	switch word {
	case "-m", "--match":
		if m := p.next(); m != "tcp" && m != "udp" && m != "sctp" {
			return fmt.Errorf("%s %s: %w", word, m, errCondition)
		}
		return nil
	case "meta":
		word = p.next()
		if word != "iifname" && word != "l4proto" {
			return fmt.Errorf("meta %s: %w", word, errCondition)
		}
	case "ip", "ip6", "tcp", "udp", "sctp", "th":
		return p.header(word, not)
	}
	if word != "iifname" && word != "l4proto" && !strings.HasPrefix(word, "-") {
		return fmt.Errorf("%s: %w", word, errCondition)
	}
	not = p.negated() != not
	return p.value(word, not, p.next())
}

// header reads a condition on a packet header, such as ip saddr or tcp dport.
func (p *condParser) header(proto string, not bool) error {
	fieldName := p.next()
	not = p.negated() != not
	value := p.next()
	switch {
	case proto == "ip" && p.v6 || proto == "ip6" && !p.v6:
		return fmt.Errorf("%s %s: of the other address family: %w", proto, fieldName, errCondition)
	case proto == "ip" || proto == "ip6":
		if fieldName != "saddr" && fieldName != "daddr" {
			return fmt.Errorf("%s %s: %w", proto, fieldName, errCondition)
		}
		return p.value(fieldName, not, value)
	case fieldName != "dport" && fieldName != "sport":
		return fmt.Errorf("%s %s: %w", proto, fieldName, errCondition)
	case proto != "th":
		if err := p.proto(false, proto); err != nil {
			return err
		}
	}
	return p.value(fieldName, not, value)
}

// value compiles a condition from its field and its value.
func (p *condParser) value(word string, not bool, value string) (err error) {
	if value == "" {
		return fmt.Errorf("%s: value missing: %w", word, errCondition)
	}
	switch word {
	case "saddr", "-s", "--source", "--src":
		err = p.addr(true, not, value)
	case "daddr", "-d", "--destination", "--dst":
		err = p.addr(false, not, value)
	case "iifname", "-i", "--in-interface":
		err = p.iface(not, value)
	case "l4proto", "-p", "--protocol":
		err = p.proto(not, value)
	case "dport", "--dport", "--destination-port":
		err = p.port(2, not, value)
	case "sport", "--sport", "--source-port":
		err = p.port(0, not, value)
	default:
		err = errCondition
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", word, value, err)
	}
	return nil
}

func cmpOp(not bool) expr.CmpOp {
	if not {
		return expr.CmpOpNeq
	}
	return expr.CmpOpEq
}

func (p *condParser) addr(source, not bool, value string) error {
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		a, err2 := netip.ParseAddr(value)
		if err2 != nil || a.Zone() != "" {
			return errCondition
		}
		prefix = netip.PrefixFrom(a, a.BitLen())
	}
	if prefix.Addr().Is6() != p.v6 {
		return fmt.Errorf("of the other address family: %w", errCondition)
	}
	if prefix.Bits() == 0 && !not {
		return nil // the prefix covers every address; nft cannot express this comparison
	}
	p.out = append(p.out, MatchPrefix(prefix, source, cmpOp(not))...)
	return nil
}

// iface compiles a comparison of an interface name. iface compares a complete name with its final
// NUL, and for "eth*" or "eth+" only the part before the sign.
func (p *condParser) iface(not bool, value string) error {
	prefix, star := strings.CutSuffix(value, "*")
	prefix, plus := strings.CutSuffix(prefix, "+")
	if prefix == "" || len(prefix) >= unix.IFNAMSIZ || strings.ContainsAny(prefix, "{}*,/") {
		return errCondition
	}
	data := IfName(prefix)
	if star || plus {
		data = []byte(prefix)
	}
	p.out = append(p.out, metaIs(expr.MetaKeyIIFNAME, cmpOp(not), data)...)
	return nil
}

func (p *condParser) proto(not bool, value string) error {
	n, ok := ProtocolNumber(value)
	if !ok {
		number, err := strconv.ParseUint(value, 10, 8)
		if err != nil || number == 0 {
			return errCondition
		}
		n = uint8(number)
	}
	p.out = append(p.out, metaIs(expr.MetaKeyL4PROTO, cmpOp(not), []byte{n})...)
	return nil
}

// port compiles a comparison of the port at this offset in the transport header.
func (p *condParser) port(offset uint32, not bool, value string) error {
	lo, hi, ranged := strings.Cut(strings.Replace(value, ":", "-", 1), "-")
	from, err := strconv.ParseUint(lo, 10, 16)
	to := from
	if ranged && err == nil {
		to, err = strconv.ParseUint(hi, 10, 16)
	}
	if err != nil || to < from {
		return errCondition
	}
	p.out = append(p.out, &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2})
	low, high := binary.BigEndian.AppendUint16(nil, uint16(from)), binary.BigEndian.AppendUint16(nil, uint16(to))
	if !ranged {
		p.out = append(p.out, &expr.Cmp{Op: cmpOp(not), Register: reg1, Data: low})
		return nil
	}
	p.out = append(p.out, &expr.Range{Op: cmpOp(not), Register: reg1, FromData: low, ToData: high})
	return nil
}
