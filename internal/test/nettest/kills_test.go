// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"testing"
	"time"
)

// The first process meets a busy machine and the others do not, or the reverse. The moments adapt
// to the time that the work takes.
func TestKillsFollow(t *testing.T) {
	for what, times := range map[string]struct{ first, later time.Duration }{
		"quicker": {time.Second, 20 * time.Millisecond},
		"slower":  {20 * time.Millisecond, time.Second},
		"same":    {time.Second, time.Second},
	} {
		k := seededKills(t, what, 1)
		k.saw(k.after(), times.first, false)
		for k.More(100) {
			after := k.after()
			k.saw(after, min(after, times.later), after < times.later)
		}
		if k.tried > 120 {
			t.Errorf("%s: %d tries until %d died", what, k.tried, k.died)
		}
		if k.usual < times.later*3/4 || k.usual > times.later*3/2 {
			t.Errorf("%s: it takes %v, not %v", what, times.later, k.usual)
		}
	}
}
