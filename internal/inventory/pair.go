// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/life"
)

// Settling limits how long a GC waits, for all its attachments together, until the kernel has deleted the pairs of
// namespaces that have just ended.
type Settling struct {
	Time  time.Duration // if 0, two seconds
	until time.Time
}

// settleTime is Settling.Time if that is 0.
const settleTime = 2 * time.Second

// wait calls pair again until the pair is not there any more, or the time is over. The time begins with the first pair.
func (s *Settling) wait(pair func() (string, error)) {
	if s.until.IsZero() {
		s.until = time.Now().Add(cmp.Or(s.Time, settleTime))
	}
	for link, err := pair(); link != "" && err == nil && time.Now().Before(s.until); link, err = pair() {
		clock.Sleep(context.Background(), 5*time.Millisecond)
	}
}

// pair returns the attachment's link that carries. If the namespaces that traces name are gone (space), the kernel may be
// about to delete the pair. It may also be if no trace names a namespace. But then a GC with a list does not wait: ADDs of
// the network wait for it, and a later GC asks again.
func (e *Evidence) pair(q Question, space Verdict) (link string, err error) {
	if ends := space.State == life.Dead || space.Why == "" && !q.HasList; ends && e.Settling != nil {
		e.Settling.wait(func() (string, error) { return e.Pair(true) })
	}
	return e.Pair(false)
}

// lives adds to Namespace what the attachment's veth shows. If it carries, its other end is up in an existing
// namespace, so that the attachment lives whatever is at the paths.
func (e *Evidence) lives(q Question) Verdict {
	v := e.Namespace()
	if v.State == life.Alive || v.Forgotten != "" || e.Pair == nil {
		return v
	}
	switch link, err := e.pair(q, v); {
	case err != nil:
		return Verdict{State: life.Alive, Why: "its link cannot be read, so its container may live: " + err.Error(), Row: PairInUse}
	case link != "":
		return Verdict{State: life.Alive, Why: "its link " + link + " carries, so its container lives", Row: PairInUse}
	}
	return v
}
