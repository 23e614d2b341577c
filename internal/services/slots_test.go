// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"
	"testing"
)

// The classes are powers of two, and a change of one endpoint changes two slots at most.
func TestSlots(t *testing.T) {
	for n, want := range map[int]uint32{0: 0, 1: 0, 2: 2, 3: 4, 4: 4, 5: 8, 64: 64, 65: 128, 4097: 8192} {
		if got := classOf(n); got != want {
			t.Errorf("class of %d is %d, want %d", n, got, want)
		}
	}
	a, b, c, d := ap("10.0.0.1:1"), ap("10.0.0.2:1"), ap("10.0.0.3:1"), ap("10.0.0.4:1")
	for _, test := range []struct{ old, list, want []netip.AddrPort }{
		{nil, []netip.AddrPort{a, b}, []netip.AddrPort{a, b}},
		{[]netip.AddrPort{c, b, a}, []netip.AddrPort{a, b, c}, []netip.AddrPort{c, b, a}},
		{[]netip.AddrPort{a, b, c, d}, []netip.AddrPort{b, c, d}, []netip.AddrPort{d, b, c}},
		{[]netip.AddrPort{b, c}, []netip.AddrPort{a, b, c}, []netip.AddrPort{b, c, a}},
		{[]netip.AddrPort{a, b}, []netip.AddrPort{b, c}, []netip.AddrPort{c, b}},
		{[]netip.AddrPort{a, b}, nil, nil},
	} {
		if got := keep(test.old, test.list); !slices.Equal(got, test.want) {
			t.Errorf("%v to %v: got %v, want %v", test.old, test.list, got, test.want)
		}
	}
}

func ap(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
