// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// A container's namespace ended without a DEL, and an ADD comes under the same names. The ADD is
// killed with kill -9 at random points. The record covers both lives, so DEL or GC removes the
// objects of either life.
func TestKillAgain(t *testing.T) {
	before := baseline(t)
	kills := nettest.NewKills(t, "ADD")
	for n := 0; kills.More(tries(t) / 2); n++ {
		q := request{"again", fmt.Sprintf("/run/netns/crash-again-%d", n), 10007}
		for again := range 2 {
			if err := netns.Create(q.ns); err != nil {
				t.Fatal(err)
			}
			q.port += again
			if again == 0 {
				died(t, q.call(spec.Add, ""), time.Minute)
			} else {
				try(t, kills, q.call(spec.Add, ""))
			}
			if err := netns.Delete(q.ns); err != nil {
				t.Fatal(err)
			}
		}
		if n%2 == 0 {
			mustRun(t, q, spec.Del, "")
		} else {
			mustRun(t, q, spec.GC, keepNobody)
		}
		nothingBeyond(t, before, fmt.Sprintf("try %d", n))
	}
}
