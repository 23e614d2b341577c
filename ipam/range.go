// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/prefix"
)

// Range is a run of addresses in a subnet, first and last included. Canonicalize gives each field
// with the zero value its default.
type Range struct {
	Subnet  netip.Prefix
	Start   netip.Addr // default: the first address after the network address
	End     netip.Addr // default: the last address; for IPv4 the one before broadcast
	Gateway netip.Addr // default: the first address after the network address; never given out
}

// ParseRange reads the four fields of a range in the configuration. An empty text means that the
// field is absent. The errors have the texts of package net, which the reference uses.
func ParseRange(subnet, start, end, gateway string) (r Range, err error) {
	if r.Subnet, err = parsePrefix(subnet); err != nil {
		return r, err
	}
	if r.Start, err = ParseAddr(start); err != nil {
		return r, err
	}
	if r.End, err = ParseAddr(end); err != nil {
		return r, err
	}
	r.Gateway, err = ParseAddr(gateway)
	return r, err
}

func parsePrefix(s string) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("invalid CIDR address: %s", s)
	}
	return p, nil
}

// ParseAddr reads an address as package net does. It refuses a zone, and turns an IPv4-mapped
// IPv6 address into IPv4. For an empty text it returns the zero address.
func ParseAddr(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("invalid IP address: %s", s)
	}
	return a.Unmap(), nil
}

// Canonicalize checks r and sets missing fields to the reference's defaults. Its errors have
// the reference's texts, where these are true.
func (r *Range) Canonicalize() error {
	if err := r.checkSubnet(); err != nil {
		return err
	}
	first := r.Subnet.Addr().Next()
	if !r.Gateway.IsValid() {
		r.Gateway = first
	}
	if inside := r.Subnet.Contains(r.Start) && r.Subnet.Contains(r.End); inside && r.Start.Compare(r.End) > 0 {
		// The reference says that the start is not in the network, which is not so.
		return fmt.Errorf("RangeStart %s is after RangeEnd %s", r.Start, r.End)
	}
	if !r.Start.IsValid() {
		r.Start = first
	} else if !r.Contains(r.Start) {
		return fmt.Errorf("RangeStart %s not in network %s", r.Start, r.Subnet)
	}
	if !r.End.IsValid() {
		r.End = lastUsable(r.Subnet)
	} else if !r.Contains(r.End) {
		return fmt.Errorf("RangeEnd %s not in network %s", r.End, r.Subnet)
	}
	// The reference accepts a start after the default end, and then gives out addresses beyond the
	// subnet.
	if r.Start.Compare(r.End) > 0 {
		return fmt.Errorf("RangeStart %s is after the last address of network %s, %s", r.Start, r.Subnet, r.End)
	}
	return nil
}

func (r *Range) checkSubnet() error {
	a := r.Subnet.Addr()
	switch {
	case !a.IsValid():
		return errors.New("IP <nil> not v4 nor v6")
	case a.Is4In6():
		return errors.New("IPNet IP and Mask version mismatch")
	case r.Subnet.Bits() > a.BitLen()-2:
		return fmt.Errorf("Network %s too small to allocate from", r.Subnet)
	case r.Subnet.Masked() != r.Subnet:
		return fmt.Errorf("Network has host bits set. For a subnet mask of length %d the network address is %s",
			r.Subnet.Bits(), r.Subnet.Masked().Addr())
	}
	return nil
}

// lastUsable returns the last address of p. For IPv4 it returns the address before the broadcast
// address.
func lastUsable(p netip.Prefix) netip.Addr {
	last := prefix.Last(p)
	if last.Is4() {
		return last.Prev()
	}
	return last
}

// Contains reports whether a is in r. An end that is not set does not limit the range.
func (r *Range) Contains(a netip.Addr) bool {
	if !r.Subnet.Contains(a) {
		return false
	}
	if r.Start.IsValid() && sameFamily(a, r.Start) && a.Less(r.Start) {
		return false
	}
	return !r.End.IsValid() || !sameFamily(a, r.End) || !r.End.Less(a)
}

func sameFamily(a, b netip.Addr) bool { return a.Is4() == b.Is4() }

// Overlaps reports whether r and o share an address. Both must be canonical.
func (r *Range) Overlaps(o *Range) bool {
	return r.Contains(o.Start) || r.Contains(o.End) || o.Contains(r.Start) || o.Contains(r.End)
}

// String returns "start-end".
func (r *Range) String() string { return r.Start.String() + "-" + r.End.String() }

// RangeSet is a set of ranges. An attachment gets one address from the whole set.
type RangeSet []Range

// Canonicalize checks every range of s. It also checks that the ranges have one family and do not
// overlap.
func (s RangeSet) Canonicalize() error {
	if len(s) == 0 {
		return errors.New("empty range set")
	}
	for i := range s {
		if err := s[i].Canonicalize(); err != nil {
			return err
		}
		if !sameFamily(s[i].Start, s[0].Start) {
			return errors.New("mixed address families")
		}
	}
	for i := range s {
		for j := i + 1; j < len(s); j++ {
			if s[i].Overlaps(&s[j]) {
				return fmt.Errorf("subnets %s and %s overlap", s[i].String(), s[j].String())
			}
		}
	}
	return nil
}

// First returns the first address of a canonical set that is not a gateway.
func (s RangeSet) First() (a netip.Addr, ok bool) {
	for i := range s {
		a := s[i].Start
		if a == s[i].Gateway {
			a = a.Next()
		}
		if s[i].Contains(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Find returns the index of the range that holds a, or -1.
func (s RangeSet) Find(a netip.Addr) int {
	for i := range s {
		if s[i].Contains(a) {
			return i
		}
	}
	return -1
}

// Contains reports whether a range of s holds a.
func (s RangeSet) Contains(a netip.Addr) bool { return s.Find(a) >= 0 }

// Overlaps reports whether s and o share an address.
func (s RangeSet) Overlaps(o RangeSet) bool {
	for i := range s {
		for j := range o {
			if s[i].Overlaps(&o[j]) {
				return true
			}
		}
	}
	return false
}

// String returns "start-end,start-end".
func (s RangeSet) String() string {
	out := make([]string, len(s))
	for i := range s {
		out[i] = s[i].String()
	}
	return strings.Join(out, ",")
}

// ErrNoRanges means that the configuration has no range set.
var ErrNoRanges = errors.New("no IP ranges specified")

// Canonicalize checks each range set, then that no two sets overlap.
func Canonicalize(sets []RangeSet) error {
	if len(sets) == 0 {
		return ErrNoRanges
	}
	for i, s := range sets {
		if err := s.Canonicalize(); err != nil {
			return fmt.Errorf("invalid range set %d: %w", i, err)
		}
	}
	for i := range sets {
		for j := i + 1; j < len(sets); j++ {
			if sets[i].Overlaps(sets[j]) {
				return fmt.Errorf("range set %d overlaps with %d", i, j)
			}
		}
	}
	return nil
}

// Families counts the IPv4 sets and the IPv6 sets.
func Families(sets []RangeSet) (v4, v6 int) {
	for _, s := range sets {
		if s[0].Start.Is4() {
			v4++
		} else {
			v6++
		}
	}
	return v4, v6
}
