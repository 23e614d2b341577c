// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import "net/netip"

// shares counts how many frontends need each element that several may need. Each Service has some of them, so they are kept in little memory.
type shares struct {
	addrs  map[netip.Addr]uses
	ranges map[Element]int // few
}

// uses are the counts of the elements that have only an address.
type uses struct{ hairpin, clusterIP, vip, nodeAddress int32 }

func newShares() shares {
	return shares{addrs: make(map[netip.Addr]uses), ranges: make(map[Element]int)}
}

func (u *uses) of(s Set) *int32 {
	switch s {
	case Hairpin:
		return &u.hairpin
	case ClusterIP:
		return &u.clusterIP
	case VIP:
		return &u.vip
	case NodeAddress:
		return &u.nodeAddress
	}
	return nil // a range
}

// add changes the count of an element, and returns it before and after.
func (s *shares) add(e Element, n int) (had, has int) {
	u := s.addrs[e.Frontend.Addr]
	count := u.of(e.Set)
	if count == nil {
		had = s.ranges[e]
		set(s.ranges, e, had+n)
		return had, had + n
	}
	had = int(*count)
	*count += int32(n) //nolint:gosec // a number of frontends
	set(s.addrs, e.Frontend.Addr, u)
	return had, had + n
}

// set stores a value that is not zero.
func set[K, V comparable](m map[K]V, key K, value V) {
	var zero V
	if m[key] = value; value == zero {
		delete(m, key)
	}
}

func (s *shares) count(e Element) int {
	u := s.addrs[e.Frontend.Addr]
	if count := u.of(e.Set); count != nil {
		return int(*count)
	}
	return s.ranges[e]
}

// each calls do with each element that some frontend needs.
func (s *shares) each(do func(Element)) {
	for a, u := range s.addrs {
		for _, set := range []Set{Hairpin, ClusterIP, VIP, NodeAddress} {
			if *u.of(set) > 0 {
				do(address(set, a))
			}
		}
	}
	for e := range s.ranges {
		do(e)
	}
}
