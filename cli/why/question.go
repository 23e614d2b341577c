// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
)

// Target is TO of a question: TO[:PORT[/PROTO]] or TO:PROTO. An IPv6 address with a port is in
// brackets.
type Target struct {
	Word     string
	Protocol l4.Protocol // 0: any. policy.ICMP stands for both families
	Port     uint16      // 0: any
}

// ParseTarget reads a target.
func ParseTarget(text string) (t Target, err error) {
	word, rest := split(text)
	if t.Word = word; word == "" {
		return t, fmt.Errorf("%q has no name or address before its port", text)
	}
	port, name, both := strings.Cut(rest, "/")
	switch {
	case rest == "":
		return t, nil
	case !both && rest == "icmp":
		t.Protocol = l4.ICMP
		return t, nil
	case !both && !numeric(rest):
		port, name = "", rest
	case !both:
		name = "tcp"
	}
	number, ok := nft.ProtocolNumber(name)
	if !ok {
		return t, fmt.Errorf("%q: protocol %q is not tcp, udp, sctp or icmp; icmp has no port", text, name)
	}
	if t.Protocol = l4.Protocol(number); port == "" && !both {
		return t, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if t.Port = uint16(n); err != nil || n == 0 {
		return t, fmt.Errorf("%q: port %q is not a number from 1 to 65535", text, port)
	}
	return t, nil
}

// split separates the name or address from what follows the colon.
func split(text string) (word, rest string) {
	if _, err := netip.ParseAddr(text); err == nil {
		return text, ""
	}
	if in, after, ok := strings.Cut(strings.TrimPrefix(text, "["), "]"); ok && text[0] == '[' {
		return in, strings.TrimPrefix(after, ":")
	}
	word, rest, _ = strings.Cut(text, ":")
	return word, rest
}

func numeric(s string) bool { return strings.Trim(s, "0123456789") == "" }

// String returns "5432/tcp", "any tcp port", "icmp" or "any port".
func (t Target) String() string {
	switch {
	case t.Protocol == 0:
		return "any port"
	case t.Protocol == l4.ICMP:
		return "icmp"
	case t.Port == 0:
		return "any " + nft.ProtocolName(uint8(t.Protocol)) + " port"
	}
	return fmt.Sprintf("%d/%s", t.Port, nft.ProtocolName(uint8(t.Protocol)))
}

// These are the types of an echo request, the ICMP that begins a connection.
const (
	echo  = 8
	echo6 = 128
)

// of returns the protocol and the port in a packet of one family.
func (t Target) of(v6 bool) (l4.Protocol, uint16) {
	switch {
	case t.Protocol != l4.ICMP:
		return t.Protocol, t.Port
	case v6:
		return l4.ICMPv6, echo6
	}
	return l4.ICMP, echo
}
