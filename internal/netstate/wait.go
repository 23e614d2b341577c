// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"time"
)

// lostEvent is how soon to ask again without an event: a socket whose buffer
// ran over has lost some.
const lostEvent = 50 * time.Millisecond

// until asks, and asks again at every event, until the answer is yes. yes is
// false when ctx ended first.
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
				events = nil // the socket is gone: ask by the clock
			}
		case <-again.C:
		case <-ctx.Done():
			return false, nil
		}
	}
}

// unsubscribe ends a subscription of the library, whose goroutine would wait
// for ever for somebody to take its last event.
func unsubscribe[T any](events <-chan T, done chan<- struct{}) {
	close(done)
	for range events { // thrown away
	}
}
