// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
)

// Signal wakes the reader of a channel with room for one signal.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // the loop has not yet handled an earlier signal
	}
}

const (
	settleTime = 20 * time.Millisecond // waits this long for further changes, to handle them together
	restFactor = 4                     // rests this many times as long as the work took
	settleMost = 5 * time.Second       // longest rest; it matters with a slow server, when the process itself works only a part of the time
)

// Settle returns how long to collect changes before the next check. The time is longer if the
// last check took long, so that checks never use a whole processor. The time is limited,
// because the loop notices nothing while it waits.
func Settle(took time.Duration) time.Duration {
	return min(max(settleTime, restFactor*took), settleMost)
}

// RetryFirst and RetryMost are the first and the longest pause after a failure. The pauses
// grow, because hundreds of nodes ask for everything when a server is back.
const (
	RetryFirst = time.Second
	RetryMost  = 15 * time.Second
)

// Keep is Repeat for a call that returns only when it fails. failed gets nil once a call has
// lasted for a while.
func Keep(ctx context.Context, failed func(error), fn func() error) {
	Repeat(ctx, failed, func() error {
		ended, noted := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(noted)
			select {
			case <-ended:
			case <-time.After(RetryMost):
				failed(nil)
			}
		}()
		defer func() { close(ended); <-noted }()
		return fn()
	})
}

// Repeat calls fn again and again until ctx ends, with a pause after each call.
func Repeat(ctx context.Context, failed func(error), fn func() error) {
	for pause := RetryFirst; ctx.Err() == nil; pause = min(2*pause, RetryMost) {
		began := time.Now()
		err := fn()
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
		if err == nil || time.Since(began) > RetryMost {
			pause = RetryFirst // the call worked for a while before it failed
		}
		clock.Sleep(ctx, Jitter(pause))
	}
}

// Jitter returns a random time of about d, so that nodes do not act at the same moment.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
