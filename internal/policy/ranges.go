// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/prefix"
)

// Range is a range of addresses of one family, with both ends.
type Range struct{ First, Last netip.Addr }

// String returns "10.0.0.0-10.0.0.9", or one address.
func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// parsePrefix reads a CIDR. The API server accepts bits after the prefix, which do not count, and numbers that
// begin with zeros, which are decimal in IPv4.
func parsePrefix(cidr string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(withoutZeros(cidr))
	if err != nil {
		return p, fmt.Errorf("CIDR %q: %w", cidr, err)
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("CIDR %q is an IPv4 address written as IPv6", cidr)
	}
	return p.Masked(), nil
}

// withoutZeros removes the zeros with which numbers of a CIDR begin.
func withoutZeros(cidr string) string {
	out := make([]byte, 0, len(cidr))
	begins := true // out ends before a number
	for i := range len(cidr) {
		if begins && cidr[i] == '0' && i+1 < len(cidr) && isHex(cidr[i+1]) {
			continue
		}
		begins = !isHex(cidr[i])
		out = append(out, cidr[i])
	}
	return string(out)
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// ranges returns what an ipBlock contains.
func (b IPBlock) ranges() ([]Range, error) {
	whole, err := parsePrefix(b.CIDR)
	if err != nil {
		return nil, err
	}
	var excepts []netip.Prefix
	for _, text := range b.Except {
		p, err := parsePrefix(text)
		if err == nil && (p.Bits() < whole.Bits() || !whole.Contains(p.Addr())) {
			err = fmt.Errorf("except %q is not within %q", text, b.CIDR)
		}
		if err != nil {
			return nil, err
		}
		excepts = append(excepts, p)
	}
	return subtract(whole, excepts), nil
}

// subtract returns a network without some networks in it.
func subtract(whole netip.Prefix, excepts []netip.Prefix) (ranges []Range) {
	slices.SortFunc(excepts, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	from, end := whole.Addr(), prefix.Last(whole)
	for _, e := range excepts {
		if e.Addr().Less(from) {
			continue // within the preceding network
		}
		if from.Less(e.Addr()) {
			ranges = append(ranges, Range{from, e.Addr().Prev()})
		}
		if prefix.Last(e) == end {
			return ranges
		}
		from = prefix.Last(e).Next()
	}
	return append(ranges, Range{from, end})
}

// joined returns the peers of a rule with all its ipBlocks in one. The kernel then has one set and one lookup for
// them, however many there are.
func joined(peers []peer) []peer {
	var names []string
	var in []Range
	var others []peer
	for _, p := range peers {
		if p.ranges == "" {
			others = append(others, p)
			continue
		}
		names, in = append(names, p.ranges), append(in, p.in...)
	}
	if len(names) < 2 {
		return peers
	}
	return append(others, peer{ranges: strings.Join(unique(names), " + "), in: union(in)})
}

// union returns what the ranges contain as ranges that neither overlap nor touch.
func union(ranges []Range) (out []Range) {
	slices.SortFunc(ranges, func(a, b Range) int { return a.First.Compare(b.First) })
	for _, r := range ranges {
		if n := len(out) - 1; n >= 0 && out[n].reaches(r.First) {
			if out[n].Last.Less(r.Last) {
				out[n].Last = r.Last
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// reaches reports whether an address, which is not before the range, is in it or just after it.
func (r Range) reaches(a netip.Addr) bool {
	return r.Last.BitLen() == a.BitLen() && (a.Compare(r.Last) <= 0 || r.Last.Next() == a)
}

// contains reports whether an address is in one of the sorted ranges.
func contains(ranges []Range, a netip.Addr) bool {
	i, found := slices.BinarySearchFunc(ranges, a, func(r Range, a netip.Addr) int { return r.First.Compare(a) })
	return found || i > 0 && ranges[i-1].Last.Compare(a) >= 0 && ranges[i-1].First.BitLen() == a.BitLen()
}

// Ports is a range of ports of a protocol. Protocol 0 is all traffic. If First and Last are 0, it
// is all ports of the protocol.
type Ports struct {
	Protocol    l4.Protocol
	First, Last uint16
}

// String returns "tcp 80", "tcp 80-90", "tcp" or "all traffic".
func (p Ports) String() string {
	switch {
	case p.Protocol == 0:
		return "all traffic"
	case p.First == 0 && p.Last == 0:
		return p.Protocol.String()
	case p.First == p.Last:
		return fmt.Sprintf("%s %d", p.Protocol, p.First)
	}
	return fmt.Sprintf("%s %d-%d", p.Protocol, p.First, p.Last)
}

// match reports whether a packet's protocol and port are in the range.
func (p Ports) match(proto l4.Protocol, port uint16) bool {
	if p.Protocol == 0 {
		return true
	}
	return p.Protocol == proto && (p.First == 0 && p.Last == 0 || p.First <= port && port <= p.Last)
}

// portRange checks the numbers of a range.
func portRange(proto l4.Protocol, first, last int32) (Ports, error) {
	if first < 1 || last > 65535 || last < first {
		return Ports{}, fmt.Errorf("ports %d to %d are not a range within 1 to 65535", first, last)
	}
	return Ports{proto, uint16(first), uint16(last)}, nil
}

// portSpec is one entry of a rule's ports: a range, or a name that each destination resolves.
type portSpec struct {
	Ports
	name string // Ports then has only the protocol; 0 is any of them
}

// read checks one port of a NetworkPolicy.
func (p RulePort) read() (portSpec, error) {
	proto, err := l4.Parse(p.Protocol)
	switch {
	case err != nil:
		return portSpec{}, err
	case p.Port == nil && p.EndPort == nil:
		return portSpec{Ports: Ports{Protocol: proto}}, nil
	case p.Port == nil:
		return portSpec{}, errors.New("endPort needs port")
	case p.Port.Name != "" && p.EndPort != nil:
		return portSpec{}, fmt.Errorf("endPort needs a number, and port is %q", p.Port.Name)
	case p.Port.Name != "":
		return portSpec{Ports: Ports{Protocol: proto}, name: p.Port.Name}, nil
	}
	end := p.Port.Number
	if p.EndPort != nil {
		end = *p.EndPort
	}
	r, err := portRange(proto, p.Port.Number, end)
	return portSpec{Ports: r}, err
}

// read checks one protocol of a ClusterNetworkPolicy.
func (p ClusterProtocol) read() (portSpec, error) {
	var found []portSpec
	for i, d := range []*DestinationPort{p.TCP, p.UDP, p.SCTP} {
		if d == nil {
			continue
		}
		r, err := d.read([...]l4.Protocol{l4.TCP, l4.UDP, l4.SCTP}[i])
		if err != nil {
			return portSpec{}, err
		}
		found = append(found, portSpec{Ports: r})
	}
	if p.NamedPort != "" {
		found = append(found, portSpec{name: p.NamedPort})
	}
	if len(found) != 1 {
		return portSpec{}, fmt.Errorf("a protocol has %d known fields, want 1", len(found))
	}
	return found[0], nil
}

func (d DestinationPort) read(proto l4.Protocol) (Ports, error) {
	switch p := d.DestinationPort; {
	case p == nil:
		return Ports{Protocol: proto}, nil
	case p.Range != nil && p.Number != 0, p.Range == nil && p.Number == 0:
		return Ports{}, errors.New("a destinationPort needs a number or a range")
	case p.Range != nil:
		return portRange(proto, p.Range.Start, p.Range.End)
	default:
		return portRange(proto, p.Number, p.Number)
	}
}
