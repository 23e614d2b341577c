// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"time"
)

// lostEvent is how long to wait for an event before asking again: a socket whose buffer
// overflowed has lost some.
const lostEvent = 50 * time.Millisecond

// until calls ask, and again at every event, until the answer is yes. yes is false when ctx
// ended first.
func until[T any](ctx context.Context, events <-chan T, ask func() (bool, error)) (yes bool, err error) {
	again := time.NewTicker(lostEvent)
	defer again.Stop()
	for {
		if yes, err = ask(); yes || err != nil {
			return yes, err
		}
		select {
		case _, ok := <-events:
			if !ok {
				events = nil // the socket is closed: only the timer is left
			}
		case <-again.C:
		case <-ctx.Done():
			return false, nil
		}
	}
}

// unsubscribe ends a subscription of the library, whose goroutine would block for ever on
// its last event.
func unsubscribe[T any](events <-chan T, done chan<- struct{}) {
	close(done)
	for range events { // discarded
	}
}
