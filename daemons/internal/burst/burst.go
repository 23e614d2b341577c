// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package burst waits for the end of bursts of changes. A node's agent compiles once for all that changes at nearly one time, rests
// under constant change, and tries again what failed.
package burst

import (
	"context"
	"time"

	"github.com/patchbay-net/patchbay/internal/resident"
)

// Wait says how long changes are collected.
type Wait struct {
	Shortest time.Duration // a burst has ended if nothing has changed for so long
	Longest  time.Duration // a burst that does not end waits no longer than this, from its first change

	// Rest sets the pause after programs: Rest times the time that they took, and at most restMost. The pause bounds
	// the processor time under constant change, and may be longer than Longest.
	Rest int

	// Credit is the longest pause that may be put off. So a few changes in short order do not wait.
	Credit time.Duration
}

// restMost is the longest rest. If the kernel was slow, and not the processor, a longer rest does not help.
const restMost = 5 * time.Second

// Burst waits for bursts of changes. Its owner calls Next, does the work, and calls Note.
type Burst struct {
	Wait
	Changed <-chan struct{} // has a signal after each change

	owed  time.Duration // rest for the work, at the end of the last one
	ended time.Time
	retry time.Duration // 0: the last work succeeded
}

// Note stores the result of the work that began at a time.
func (b *Burst) Note(err error, began time.Time) {
	b.owed = max(0, b.owed-began.Sub(b.ended))
	b.ended = time.Now()
	b.owed = min(b.owed+time.Duration(b.Rest)*b.ended.Sub(began), b.Credit+restMost)
	if err == nil {
		b.retry = 0
		return
	}
	b.retry = min(max(resident.RetryFirst, 2*b.retry), resident.RetryMost)
}

// Next waits for the end of a burst, or for the time of another try. It returns false if ctx ends.
func (b *Burst) Next(ctx context.Context) bool {
	var again <-chan time.Time // never
	if b.retry > 0 {
		again = time.After(resident.Jitter(b.retry))
	}
	select {
	case <-ctx.Done():
		return false
	case <-again:
		return true
	case <-b.Changed:
		return b.collect(ctx)
	}
}

// collect waits for the end of a burst that has begun.
func (b *Burst) collect(ctx context.Context) bool {
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
		case <-b.Changed:
			quiet.Reset(max(b.Shortest, b.rest()))
		}
	}
}

// rest returns how much of the rest is left beyond the credit.
func (b *Burst) rest() time.Duration { return time.Until(b.ended.Add(b.owed - b.Credit)) }
