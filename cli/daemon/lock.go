// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// lock creates a file, if it is missing, and takes its lock. It waits at most for wait, and not
// at all if wait is 0. If the lock stays taken, the error wraps unix.EWOULDBLOCK.
func lock(ctx context.Context, path string, wait time.Duration) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, unix.EWOULDBLOCK)
	defer cancel()
	return durable.Lock(ctx, path)
}

// lockState keeps a second process from using the same state directory. The directory is named
// after the service.
func lockState(ctx context.Context, dir string, wait time.Duration) (unlock func(), err error) {
	return lockOf(ctx, dir, "lock", wait)
}

func lockOf(ctx context.Context, dir, file string, wait time.Duration) (unlock func(), err error) {
	unlock, err = lock(ctx, filepath.Join(dir, file), wait)
	if errors.Is(err, unix.EWOULDBLOCK) || ctx.Err() != nil && err != nil {
		err = fmt.Errorf("another patchbayd %s runs: %w", filepath.Base(dir), err)
	}
	return unlock, err
}

// If no driver runs, gc works on Docker's state itself, which may take minutes. A driver that
// starts meanwhile must not answer Docker with errors. So a driver takes a lock of its own
// first: gc looks at this lock, and stops when a driver has taken it.
const (
	driverLock = "driver"
	gcLooks    = 100 * time.Millisecond // how often gc looks at the lock
	lookTime   = time.Second            // longer than one look takes
	gcTime     = 30 * time.Second       // longer than gc takes to stop; meanwhile calls wait at the socket
)

// lockDriver takes the driver's lock and the lock of the state. It waits for gc, but not for
// another driver.
func lockDriver(ctx context.Context, dir string) (unlock func(), err error) {
	only, err := lockOf(ctx, dir, driverLock, lookTime)
	if err != nil {
		return nil, err
	}
	state, err := lockState(ctx, dir, gcTime)
	if err != nil {
		only()
		return nil, err
	}
	return func() { state(); only() }, nil
}

// untilDriver returns a context that is cancelled when a driver starts. Its cause wraps
// unix.EWOULDBLOCK.
func untilDriver(ctx context.Context, dir string) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for clock.Sleep(ctx, gcLooks) {
			looked, err := lock(ctx, filepath.Join(dir, driverLock), 0)
			if err != nil {
				cancel(err)
				return
			}
			looked()
		}
	}()
	return ctx, cancel
}
