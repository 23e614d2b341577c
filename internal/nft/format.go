// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/prefix"
)

// String returns the element as an nft command would write it:
//
//	ports4 { tcp . 8080 : 10.1.0.5 . 80 comment "…" }
func (e Element) String() string {
	var b strings.Builder
	b.WriteString(e.Set + " { ")
	spec, ok := specOf(e.Set)
	if !ok || len(e.Key) != concatLen(spec.key) {
		fmt.Fprintf(&b, "%x", []byte(e.Key))
	} else {
		b.WriteString(formatRange(spec.key, e.Key, e.KeyEnd))
	}
	if len(e.Data) > 0 && len(e.Data) == concatLen(spec.data) {
		b.WriteString(" : " + formatRange(spec.data, e.Data, nil))
	}
	if e.Comment != "" {
		b.WriteString(" comment " + strconv.Quote(e.Comment))
	}
	b.WriteString(" }")
	return b.String()
}

// KeyText returns the set and the key as `nft delete element` takes them.
func (e Element) KeyText() string {
	e.Data, e.Comment = nil, ""
	return e.String()
}

// concatLen returns the length of a key or of data. A single field has no padding.
func concatLen(fields []field) int {
	if len(fields) == 1 {
		return fields[0].size()
	}
	n := 0
	for _, f := range fields {
		n += f.padded()
	}
	return n
}

// formatRange writes fields from b. If end differs, it writes the field as a range.
func formatRange(fields []field, b, end []byte) string {
	parts := make([]string, 0, len(fields))
	for _, f := range fields {
		s := f.format(b[:f.size()])
		if len(end) == len(b) {
			s = f.formatTo(b[:f.size()], end[:f.size()])
			end = end[min(f.padded(), len(end)):]
		}
		parts = append(parts, s)
		b = b[min(f.padded(), len(b)):]
	}
	return strings.Join(parts, " . ")
}

// format writes one field as nft does.
func (f field) format(b []byte) string {
	switch f {
	case fieldIPv4, fieldIPv6:
		a, _ := netip.AddrFromSlice(b)
		return a.String()
	case fieldProto:
		return ProtocolName(b[0])
	case fieldPort:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	case fieldIfName:
		return strconv.Quote(strings.TrimRight(string(b), "\x00"))
	default:
		return net.HardwareAddr(b).String()
	}
}

// formatTo writes a range. If the range is a prefix, it writes the prefix.
func (f field) formatTo(b, end []byte) string {
	if string(b) == string(end) {
		return f.format(b)
	}
	if a, ok := netip.AddrFromSlice(b); ok && (f == fieldIPv4 || f == fieldIPv6) {
		for bits := range a.BitLen() {
			p := netip.PrefixFrom(a, bits)
			if p.Masked() == p && string(prefix.Last(p).AsSlice()) == string(end) {
				return p.String()
			}
		}
	}
	return f.format(b) + "-" + f.format(end)
}

// protocols are the transport protocols whose ports can be published.
func protocols() [3]protocol {
	return [...]protocol{{"tcp", unix.IPPROTO_TCP}, {"udp", unix.IPPROTO_UDP}, {"sctp", unix.IPPROTO_SCTP}}
}

type protocol struct {
	name   string
	number uint8
}

// ProtocolName returns the name of a transport protocol, or the number of any other protocol.
func ProtocolName(number uint8) string {
	for _, p := range protocols() {
		if p.number == number {
			return p.name
		}
	}
	return strconv.Itoa(int(number))
}

// ProtocolNumber returns the number of a transport protocol. Its name may be in upper case.
func ProtocolNumber(name string) (number uint8, ok bool) {
	for _, p := range protocols() {
		if p.name == strings.ToLower(name) {
			return p.number, true
		}
	}
	return 0, false
}

// Meaning says in a user's words what an element is for. What names it, as in "published port
// 8080/tcp". Does is a sentence without its subject, as in "publish port 8080/tcp to
// 10.88.0.2:80". Elements with the same What serve one purpose together.
type Meaning struct{ What, Does string }

// Meaning depends on the kind of the set. The kind is the set's name without the family and
// without the suffix (the id of a network's conditions, or a prefix length).
func (e Element) Meaning() Meaning {
	name, suffix, _ := strings.Cut(e.Set, "_")
	m := e.meaningIn(strings.TrimRight(name, "46"), suffix)
	if suffix != "" && strings.HasPrefix(m.What, "published") {
		m.Does += " under the network's conditions"
	}
	return m
}

// policyMeaning returns what an element of a set of network policies does.
func policyMeaning(set string) string {
	switch set {
	case "ownsource", "port":
		return "let packets from %s through only if their source is an address of the container"
	case "source4", "source6", "port4", "port6":
		return "let %s send from its address"
	case "closedin4", "closedin6":
		return "let no new connection to %s through"
	}
	return "let no new connection from %s through"
}

func (e Element) meaningIn(kind, suffix string) Meaning {
	key, data := e.parts()
	at := func(i int) string {
		if i < len(key) {
			return strings.Trim(key[i], `"`)
		}
		return "?"
	}
	switch kind {
	case "ports":
		return publishes(at(1)+"/"+at(0), data)
	case "hostports":
		return publishes(net.JoinHostPort(at(0), at(2))+"/"+at(1), data)
	case "snat":
		return Meaning{"hairpin", fmt.Sprintf("masquerade at port %s/%s of %s what could not be answered", at(2), at(1), at(0))}
	case "masqall":
		return Meaning{"masquerade of published ports", "masquerade every client of the published ports of " + at(0)}
	case "hairpin":
		return sameHost(at(0), at(1))
	case "masq":
		return Meaning{"masquerade", "masquerade " + at(0) + towards(at(1))}
	case "nomasq", "exempt":
		return Meaning{"masquerade", "do not masquerade " + at(0) + towards(at(1))}
	case "anyport":
		return Meaning{"masquerade", "masquerade " + at(0) + towards(at(1)) + " with random source ports"}
	case "egress":
		return Meaning{"egress address", fmt.Sprintf("masquerade %s as %s", at(0), strings.Join(data, " "))}
	case "masqueraded":
		return Meaning{"masquerade", "masquerade " + at(0)}
	case "samenet":
		return Meaning{"masquerade", "do not masquerade " + at(0) + towards(at(1)+"/"+suffix)}
	case "neighbours":
		return Meaning{"hairpin", "let the network of " + at(0) + " reach its published ports"}
	case SetLocalNet:
		return Meaning{"guard of the loopback addresses", "keep 127.0.0.0/8 from what comes in by " + at(0)}
	case SetIsolation, SetBridgeOK, SetApart, SetInternal, SetInside, "span", "divided":
		return Meaning{"isolation", isolates(kind, suffix, at)}
	case SetFastPath:
		return Meaning{"fast path", fmt.Sprintf("let established flows between bridge %s and %s skip the hooks of every firewall", at(0), at(1))}
	case SetSpoofChecked:
		return Meaning{"check of MAC addresses", "check the source addresses of frames from " + at(0)}
	case SetSpoofAllowed:
		return Meaning{"check of MAC addresses", fmt.Sprintf("let frames of %s in from %s", at(1), at(0))}
	case "policy":
		return Meaning{"network policy", fmt.Sprintf(policyMeaning(suffix), at(0))}
	case SetOwners:
		return Meaning{"mark of the owner", "mark the owner " + at(0)}
	}
	return Meaning{"firewall element of " + e.Set, "have " + e.String()}
}

// isolates returns what an element that keeps networks apart does.
func isolates(kind, suffix string, at func(int) string) string {
	switch kind {
	case SetIsolation:
		return "keep bridge " + at(0) + " apart from other isolated bridges"
	case SetBridgeOK:
		return fmt.Sprintf("let bridge %s forward to %s", at(0), at(1))
	case SetApart:
		return "keep the containers on bridge " + at(0) + " apart"
	case SetInternal:
		return "forward nothing from or to bridge " + at(0)
	case SetInside:
		return "let the containers on bridge " + at(0) + " reach each other"
	case "span":
		return "let internal bridges forward between the containers of " + at(0) + ", of which each host has a /" + suffix
	case "divided":
		return "forward nothing from containers of " + at(0) + towards(at(1))
	}
	return ""
}

func publishes(port string, to []string) Meaning {
	m := Meaning{What: "published port " + port, Does: "publish port " + port}
	if len(to) == 2 {
		m.Does += " to " + net.JoinHostPort(to[0], to[1])
	}
	return m
}

// sameHost describes two cases: traffic from a container to itself, and traffic from programs
// on the host.
func sameHost(from, to string) Meaning {
	if from == "127.0.0.0/8" || from == "::1" {
		return Meaning{"loopback access", "let the host reach published ports of " + to + " at its loopback address"}
	}
	return Meaning{"hairpin", "let " + from + " reach its own published ports"}
}

func towards(to string) string {
	if to == "0.0.0.0/0" || to == "::/0" || to == "?" {
		return ""
	}
	return " towards " + to
}

// parts returns the fields of key and data as people read them.
func (e Element) parts() (key, data []string) {
	spec, ok := specOf(e.Set)
	if !ok {
		return nil, nil
	}
	if len(e.Key) == concatLen(spec.key) {
		key = strings.Split(formatRange(spec.key, e.Key, e.KeyEnd), " . ")
	}
	if len(e.Data) > 0 && len(e.Data) == concatLen(spec.data) {
		data = strings.Split(formatRange(spec.data, e.Data, nil), " . ")
	}
	return key, data
}
