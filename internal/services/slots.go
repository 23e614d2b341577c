// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import "net/netip"

// largestClass is how many endpoints a frontend can have, because a slot is a number of 16 bits.
const largestClass = 1 << 16

// classOf returns the class of a number of endpoints: the power of two from which the kernel draws a slot. One endpoint
// needs no slot, and no class.
func classOf(n int) uint32 {
	if n < 2 {
		return 0
	}
	size := uint32(2)
	for int(size) < n {
		size *= 2
	}
	return size
}

// keep returns the endpoints in slots 0 to n-1, each in the slot that it had in old if there is one. Only what is new, or had
// a slot beyond the last, fills the holes.
func keep(old, list []netip.AddrPort) []netip.AddrPort {
	if len(old) == 0 {
		return list
	}
	place := make(map[netip.AddrPort]int, len(list)) // where each endpoint was
	for _, e := range list {
		place[e] = -1
	}
	for i, e := range old {
		if _, stays := place[e]; stays && i < len(list) {
			place[e] = i
		}
	}
	out := make([]netip.AddrPort, len(list))
	var others []netip.AddrPort
	for _, e := range list {
		if i := place[e]; i >= 0 {
			out[i] = e
		} else {
			others = append(others, e)
		}
	}
	for i := range out {
		if !out[i].IsValid() {
			out[i], others = others[0], others[1:]
		}
	}
	return out
}
