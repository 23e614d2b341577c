// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
//	tcp|udp|sctp|th dport|sport [!=] N[-N]     [!] --dport|--sport N[:N]  (with -p)
//	                                           [!] --dports|--sports|--ports N[:N],…  (-m multiport)
//	ip saddr|daddr [!=] ADDR-ADDR              [!] --src-range|--dst-range ADDR-ADDR  (-m iprange)
//
// The words -m tcp, udp, sctp, multiport and iprange are ignored, because we know the options that they enable. ADDR
// may be a range, as 10.0.0.1-10.0.0.9. In nft's forms, == is allowed before the value, and the value may be a set: {
// 10.0.0.0/8, 192.0.2.1 }. In iptables' forms, -s and -d may have a list: 10.0.0.0/8,192.0.2.1. As in the reference,
// "!" may come before or after the field. All other conditions are refused: to ignore one would publish a port to more
// clients than the operator wants.

// errTooMany refuses what would be too many rules. The kernel evaluates them one after the other.
var errTooMany = errors.New("write a prefix or a range")

// errCondition is part of every other refusal.
var errCondition = errors.New("not a supported condition (supported: ip saddr/daddr, iifname, meta l4proto, " +
	"tcp/udp/sctp dport/sport; -s, -d, -i, -p, --dport, --sport, --dports, --sports, --ports, --src-range, --dst-range; " +
	"each with ! or !=, and for nft with sets { A, B })")

// mostAlternatives bounds the rules of a network.
const mostAlternatives = 512

// condParser reads tokens one after the other. A packet meets the conditions if it meets one of the alternatives,
// because a set of nft becomes one alternative for each value. So the rules need no anonymous sets, which have no
// names, and whose elements a check would have to read one by one.
type condParser struct {
	tokens       []string
	v6           bool
	alternatives []match
}

// parseConditions compiles the conditions of one address family to alternatives.
func parseConditions(tokens []string, v6 bool) ([]match, error) {
	apart := strings.NewReplacer("{", " { ", "}", " } ", ",", " , ") // the signs of sets
	p := &condParser{tokens: strings.Fields(apart.Replace(strings.Join(tokens, " "))), v6: v6, alternatives: []match{nil}}
	for len(p.tokens) > 0 {
		if err := p.one(); err != nil {
			return nil, err
		}
	}
	return p.alternatives, nil
}

// add narrows every alternative to one of the values.
func (p *condParser) add(values ...match) error {
	if len(p.alternatives)*len(values) > mostAlternatives {
		return fmt.Errorf("more than %d combinations of the values in sets: %w", mostAlternatives, errTooMany)
	}
	var all []match
	for _, a := range p.alternatives {
		for _, v := range values {
			all = append(all, rule(a, v))
		}
	}
	p.alternatives = all
	return nil
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

// values reads a value, or all values of a set or list.
func (p *condParser) values() (values []string, err error) {
	set := len(p.tokens) > 0 && p.tokens[0] == "{"
	if set {
		p.next()
	}
	for {
		v := p.next()
		if set && v == "}" && len(values) > 0 { // after the last comma
			return values, nil
		}
		if v == "" || strings.Contains("{},", v) {
			return nil, fmt.Errorf("value missing: %w", errCondition)
		}
		values = append(values, v)
		if len(p.tokens) > 0 && p.tokens[0] == "," {
			p.next()
			continue
		}
		if set && p.next() != "}" {
			return nil, fmt.Errorf("} or a comma missing after %s: %w", v, errCondition)
		}
		return values, nil
	}
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
		if m := p.next(); !slices.Contains([]string{"tcp", "udp", "sctp", "multiport", "iprange"}, m) {
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
	return p.condition(word, not)
}

// condition compiles a condition with one or several values. A packet differs from a set if it differs from each value.
func (p *condParser) condition(word string, not bool) error {
	list := len(p.tokens) == 0 || p.tokens[0] != "{"
	values, err := p.values()
	if err != nil {
		return fmt.Errorf("%s: %w", word, err)
	}
	if list && len(values) > 1 && !hasList(word, not) {
		return fmt.Errorf("%s %s: %w", word, strings.Join(values, ","), errCondition)
	}
	var all []match
	for _, v := range values {
		for _, field := range fieldsOf(word) {
			one, err := p.value(field, not, v)
			if err != nil {
				return err
			}
			all = append(all, one)
		}
	}
	if not {
		all = []match{rule(all...)}
	}
	return p.add(all...)
}

// hasList reports whether iptables takes a list for an option.
func hasList(word string, not bool) bool {
	switch word {
	case "-s", "--source", "--src", "-d", "--destination", "--dst":
		return !not
	case "--ports", "--dports", "--destination-ports", "--sports", "--source-ports":
		return true
	}
	return false
}

// fieldsOf returns the fields of a packet at which a word looks. For --ports, one of both has to match.
func fieldsOf(word string) []string {
	if word == "--ports" {
		return []string{"--sports", "--dports"}
	}
	return []string{word}
}

// apart writes a negated port as a range. nft 1.0.6 loads `sport != 7 dport != 9` as one comparison of both ports,
// which more packets meet. It loads ranges correctly.
func apart(not bool, port string) string {
	if !not || strings.ContainsAny(port, ":-") {
		return port
	}
	return port + "-" + port
}

// header reads a condition on a packet header, such as ip saddr or tcp dport.
func (p *condParser) header(proto string, not bool) error {
	fieldName := p.next()
	not = p.negated() != not
	switch {
	case proto == "ip" && p.v6 || proto == "ip6" && !p.v6:
		return fmt.Errorf("%s %s: of the other address family: %w", proto, fieldName, errCondition)
	case proto == "ip" || proto == "ip6":
		if fieldName != "saddr" && fieldName != "daddr" {
			return fmt.Errorf("%s %s: %w", proto, fieldName, errCondition)
		}
		return p.condition(fieldName, not)
	case fieldName != "dport" && fieldName != "sport":
		return fmt.Errorf("%s %s: %w", proto, fieldName, errCondition)
	case proto != "th":
		one, err := p.proto(false, proto)
		if err == nil {
			err = p.add(one)
		}
		if err != nil {
			return err
		}
	}
	return p.condition(fieldName, not)
}

// value compiles a condition from its field and its value.
func (p *condParser) value(word string, not bool, value string) (m match, err error) {
	switch word {
	case "saddr", "-s", "--source", "--src":
		m, err = p.addr(true, not, value)
	case "daddr", "-d", "--destination", "--dst":
		m, err = p.addr(false, not, value)
	case "--src-range", "--dst-range":
		lo, hi, ranged := strings.Cut(value, "-")
		if !ranged {
			hi = lo
		}
		m, err = p.addrRange(word == "--src-range", not, lo, hi)
	case "iifname", "-i", "--in-interface":
		m, err = p.iface(not, value)
	case "l4proto", "-p", "--protocol":
		m, err = p.proto(not, value)
	case "dport", "--dport", "--destination-port":
		m, err = p.port(2, not, value)
	case "--dports", "--destination-ports":
		m, err = p.port(2, not, apart(not, value))
	case "--sports", "--source-ports":
		m, err = p.port(0, not, apart(not, value))
	case "sport", "--sport", "--source-port":
		m, err = p.port(0, not, value)
	default:
		err = errCondition
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", word, value, err)
	}
	return m, nil
}

func cmpOp(not bool) expr.CmpOp {
	if not {
		return expr.CmpOpNeq
	}
	return expr.CmpOpEq
}

func (p *condParser) addr(source, not bool, value string) (match, error) {
	if lo, hi, ranged := strings.Cut(value, "-"); ranged {
		return p.addrRange(source, not, lo, hi)
	}
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		a, err := p.oneAddr(value)
		if err != nil {
			return nil, err
		}
		prefix = netip.PrefixFrom(a, a.BitLen())
	}
	if prefix.Addr().Is6() != p.v6 {
		return nil, fmt.Errorf("of the other address family: %w", errCondition)
	}
	if prefix.Bits() == 0 && !not {
		return nil, nil // the prefix covers every address; nft cannot express this comparison
	}
	return MatchPrefix(prefix, source, cmpOp(not)), nil
}

func (p *condParser) oneAddr(value string) (netip.Addr, error) {
	a, err := netip.ParseAddr(value)
	if err != nil || a.Zone() != "" {
		return a, errCondition
	}
	if a.Is6() != p.v6 {
		return a, fmt.Errorf("of the other address family: %w", errCondition)
	}
	return a, nil
}

func (p *condParser) addrRange(source, not bool, lo, hi string) (match, error) {
	from, err := p.oneAddr(lo)
	if err != nil {
		return nil, err
	}
	to, err := p.oneAddr(hi)
	if err != nil {
		return nil, err
	}
	if to.Less(from) {
		return nil, errCondition
	}
	return match{loadAddr(p.v6, source, reg1), &expr.Range{Op: cmpOp(not), Register: reg1, FromData: from.AsSlice(), ToData: to.AsSlice()}}, nil
}

// iface compiles a comparison of an interface name. iface compares a complete name with its final
// NUL, and for "eth*" or "eth+" only the part before the sign.
func (p *condParser) iface(not bool, value string) (match, error) {
	prefix, star := strings.CutSuffix(value, "*")
	prefix, plus := strings.CutSuffix(prefix, "+")
	if prefix == "" || len(prefix) >= unix.IFNAMSIZ || strings.ContainsAny(prefix, "*/") {
		return nil, errCondition
	}
	data := IfName(prefix)
	if star || plus {
		data = []byte(prefix)
	}
	return metaIs(expr.MetaKeyIIFNAME, cmpOp(not), data), nil
}

func (p *condParser) proto(not bool, value string) (match, error) {
	n, ok := ProtocolNumber(value)
	if !ok {
		number, err := strconv.ParseUint(value, 10, 8)
		if err != nil || number == 0 {
			return nil, errCondition
		}
		n = uint8(number)
	}
	return metaIs(expr.MetaKeyL4PROTO, cmpOp(not), []byte{n}), nil
}

// port compiles a comparison of the port at this offset in the transport header. In iptables' ranges either end may
// be missing.
func (p *condParser) port(offset uint32, not bool, value string) (match, error) {
	lo, hi, ranged := strings.Cut(value, ":")
	if ranged {
		lo, hi = cmp.Or(lo, "0"), cmp.Or(hi, "65535")
	} else {
		lo, hi, ranged = strings.Cut(value, "-")
	}
	from, err := strconv.ParseUint(lo, 10, 16)
	to := from
	if ranged && err == nil {
		to, err = strconv.ParseUint(hi, 10, 16)
	}
	if err != nil || to < from {
		return nil, errCondition
	}
	load := &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
	low, high := binary.BigEndian.AppendUint16(nil, uint16(from)), binary.BigEndian.AppendUint16(nil, uint16(to))
	if !ranged {
		return match{load, &expr.Cmp{Op: cmpOp(not), Register: reg1, Data: low}}, nil
	}
	return match{load, &expr.Range{Op: cmpOp(not), Register: reg1, FromData: low, ToData: high}}, nil
}
