// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// answersTo returns answers of so many servers to one client.
func answersTo(n int, proto l4.Protocol) (list []Answer) {
	for i := range n {
		a := Answer{From: netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), To: netip.MustParseAddr("10.1.0.1"), Protocol: proto}
		if proto.HasPorts() {
			a.Port = 53
		}
		list = append(list, a)
	}
	return list
}

// What has no room in a set is left, and gets room from what is over. Another set has room of its own.
func TestEndAnswers(t *testing.T) {
	const room = 4
	udp, other := answersTo(room+2, l4.UDP), answersTo(1, 47)
	x := EndAnswers(slices.Concat(udp, other, udp), func(a Answer) bool { return a == udp[0] })
	for _, c := range []struct {
		name              string
		have              []Answer
		add, left, remove int
	}{
		{"empty", nil, room + 1, 2, 0},
		{"full", udp[1 : room+1], 1, 2, 0},
		{"full of others", answersTo(2*room+2, l4.UDP)[room+2:], 1, room + 2, 0},
		{"one is over", append(udp[:1:1], udp[2:room+1]...), 2, 2, 1},
	} {
		add, remove := x.compare(c.have, map[string]int{endedSets[0][0]: room, endedSets[1][0]: room})
		if len(add) != c.add || len(x.NoRoom()) != c.left || len(remove) != c.remove {
			t.Errorf("%s: adds %d, leaves %d, removes %d; want %d, %d, %d", c.name, len(add), len(x.NoRoom()), len(remove), c.add, c.left, c.remove)
		}
	}
	if add, _ := x.compare(nil, nil); len(add)+len(x.NoRoom()) > 0 {
		t.Errorf("without sets it adds %v and leaves %v", add, x.NoRoom())
	}
}

// An element has the key that the rules compare.
func TestAnswerKeys(t *testing.T) {
	for _, a := range []Answer{
		{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.2.0.1"), l4.UDP, 53},
		{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), l4.SCTP, 5000},
		{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.2.0.1"), 47, 0},
		{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), 253, 0},
	} {
		found := 0
		for _, s := range endedSpecs() {
			if got, ok := s.answerOf(a.key()); ok && s.name == a.set() {
				if found++; got != a {
					t.Errorf("%v is read as %v", a, got)
				}
			}
		}
		if found != 1 {
			t.Errorf("%v is in %d sets", a, found)
		}
	}
}
