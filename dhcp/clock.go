// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
)

// Clock is the time since boot and the waits that it measures. A test replaces it with one
// that it can move.
type Clock interface {
	Since() time.Duration
	// Sleep waits for d, at most until ctx ends.
	Sleep(ctx context.Context, d time.Duration)
}

// machine is the clock of the machine.
type machine struct{}

func (machine) Since() time.Duration { return clock.SinceBoot() }

func (machine) Sleep(ctx context.Context, d time.Duration) { clock.Sleep(ctx, d) }

// within is context.WithTimeoutCause by the keeper's clock.
func (k *Keeper) within(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		k.opts.Clock.Sleep(ctx, d)
		cancel(cause)
	}()
	return ctx, func() { cancel(nil) }
}
