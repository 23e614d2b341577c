// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// A table may move elements while they are listed. Then one is there twice, and another is missing.
func TestSettled(t *testing.T) {
	for _, c := range []struct {
		about    string
		readings []string
		whole    int // the number of the first reading that is whole, 0 for none
		want     string
		asked    int
	}{
		{"whole at once", []string{"abc"}, 1, "abc", 1},
		{"moved once", []string{"aac", "abc", "abc"}, 0, "abc", 3},
		{"in several parts", []string{"abc", "abc"}, 0, "abc", 2},
		{"interrupted, then whole", []string{"ab", "abc"}, 2, "abc", 2},
		{"changes all the time", []string{"a", "b", "c", "d", "e", "f"}, 0, "e", 5},
	} {
		asked := 0
		got, err := settled(func() ([]byte, bool, error) {
			asked++
			return []byte(c.readings[asked-1]), asked == c.whole, nil
		}, func(a, b byte) bool { return a == b })
		if err != nil || string(got) != c.want || asked != c.asked {
			t.Errorf("%s: %q after %d readings, %v; want %q after %d", c.about, got, asked, err, c.want, c.asked)
		}
	}
}

// The kernel enlarges the hash table of a set after the commit that filled it. Without a second reading, one list in a
// hundred lacked elements here.
func TestListWhileTheTableGrows(t *testing.T) {
	for round := range draw.Number(t, "PATCHBAY_LIST_ROUNDS", 4, 40) {
		c := open(t)
		n := 3000 + 500*round
		for i := range n {
			c.Add(churnElement(200, i))
		}
		commit(t, c)
		list, err := c.List(SetPorts4)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(list, func(a, b Element) int { return slices.Compare(a.Key, b.Key) })
		if different := len(slices.CompactFunc(slices.Clone(list), Element.SameKey)); different != n || len(list) != n {
			t.Errorf("round %d: %d elements listed, %d of them different, want %d", round, len(list), different, n)
		}
	}
}
