// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"time"

	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Wait says how long Follow collects changes.
type Wait struct {
	Shortest time.Duration // a burst has ended if nothing has changed for so long
	Longest  time.Duration // a burst that does not end waits no longer than this, from its first change

	// Rest sets the pause after programs: Rest times the time that they took, and at most restMost. The pause bounds
	// the processor time under constant change, and may be longer than Longest.
	Rest int

	// Credit is the longest pause that Follow may put off. So a few changes in short order do not wait.
	Credit time.Duration
}

// restMost is the longest rest. If the kernel was slow, and not the processor, a longer rest does not help.
const restMost = 5 * time.Second

// Follow calls the function do with the state after each burst of changes, until ctx ends. The
// function must not use the state after it returns. The first call comes when each kind has been
// listed once. If the function fails, Follow calls it again at the next change, or after a pause that
// grows up to resident.RetryMost.
//
// Each time before Follow makes a state, it calls the function before, which can call Attach.
func (c *Cluster) Follow(ctx context.Context, w Wait, before func(), do func(*policy.State) error) {
	b := burst{Wait: w, changed: c.changed}
	for b.next(ctx) {
		began := time.Now()
		var s policy.State
		if before(); !c.state(&s) {
			continue // a kind is not listed yet: its list will signal a change
		}
		err := do(&s)
		c.giveBack()
		b.note(err, began)
	}
}

// Wake makes Follow call do soon, although no object has changed.
func (c *Cluster) Wake() { resident.Signal(c.changed) }

// burst waits for bursts of changes.
type burst struct {
	Wait
	changed <-chan struct{}
	owed    time.Duration // how long to rest after the calls of do, as of the end of the last call
	ended   time.Time
	retry   time.Duration // 0: the last call worked
}

// note stores the result of a call of do.
func (b *burst) note(err error, began time.Time) {
	b.owed = max(0, b.owed-began.Sub(b.ended))
	b.ended = time.Now()
	b.owed = min(b.owed+time.Duration(b.Rest)*b.ended.Sub(began), b.Credit+restMost)
	if err == nil {
		b.retry = 0
		return
	}
	b.retry = min(max(resident.RetryFirst, 2*b.retry), resident.RetryMost)
}

// next waits for the end of a burst, or for the time of another try. It returns false if ctx ends.
func (b *burst) next(ctx context.Context) bool {
	var again <-chan time.Time // never
	if b.retry > 0 {
		again = time.After(resident.Jitter(b.retry))
	}
	select {
	case <-ctx.Done():
		return false
	case <-again:
		return true
	case <-b.changed:
		return b.collect(ctx)
	}
}

// collect waits for the end of a burst that has begun.
func (b *burst) collect(ctx context.Context) bool {
	longest := time.After(max(b.Longest, b.rest()))
	quiet := time.NewTimer(max(b.Shortest, b.rest()))
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-longest:
			return true
		case <-quiet.C:
			return true
		case <-b.changed:
			quiet.Reset(max(b.Shortest, b.rest()))
		}
	}
}

// rest returns how much of the rest is left beyond the credit.
func (b *burst) rest() time.Duration { return time.Until(b.ended.Add(b.owed - b.Credit)) }
