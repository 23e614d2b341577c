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
)

// String is the element as an nft command would name it:
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

// KeyText is the set and the key, as nft delete element takes them.
func (e Element) KeyText() string {
	e.Data, e.Comment = nil, ""
	return e.String()
}

// concatLen is the length of a key or data: a single field is not padded.
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

// formatRange writes fields from b, as ranges where end differs.
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
		return protoName(b[0])
	case fieldPort:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	case fieldIfName:
		return strconv.Quote(strings.TrimRight(string(b), "\x00"))
	default:
		return net.HardwareAddr(b).String()
	}
}

// formatTo writes a range: as a prefix where it is one.
func (f field) formatTo(b, end []byte) string {
	if string(b) == string(end) {
		return f.format(b)
	}
	if a, ok := netip.AddrFromSlice(b); ok && (f == fieldIPv4 || f == fieldIPv6) {
		for bits := range a.BitLen() {
			p := netip.PrefixFrom(a, bits)
			if p.Masked() == p && string(LastAddr(p)) == string(end) {
				return p.String()
			}
		}
	}
	return f.format(b) + "-" + f.format(end)
}

func protoName(p byte) string {
	switch p {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(p))
}
