// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import "testing"

func TestFollows(t *testing.T) {
	for _, c := range []struct {
		now, earlier Revision
		follows      bool
	}{
		{"7@a", "", true},
		{"7@a", "7@a", true},
		{"10@a", "9@a", true},
		{"6@a", "7@a", false}, // restored from a backup
		{"9@b", "7@a", false}, // another history
		{"", "7@a", false},
	} {
		if got := c.now.Follows(c.earlier); got != c.follows {
			t.Errorf("%q follows %q: %v", c.now, c.earlier, got)
		}
	}
}

func TestWith(t *testing.T) {
	for event, want := range map[Revision]Revision{"8": "8@a", "6": "7@a", "": "7@a", "12@a": "12@a"} {
		if got := Revision("7@a").With(event); got != want {
			t.Errorf("7@a with %q is %q, want %q", event, got, want)
		}
	}
}
