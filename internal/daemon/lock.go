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

	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/internal/sleep"
)

// lock takes the lock of a file, which is made, and waits for it until ctx ends,
// for as long as wait at most; 0 is not at all. The error of one that stays taken
// wraps unix.EWOULDBLOCK.
func lock(ctx context.Context, path string, wait time.Duration) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, unix.EWOULDBLOCK)
	defer cancel()
	return flock.File(ctx, path)
}

// alone keeps a second process from the same state, whose directory has the
// service's name.
func alone(ctx context.Context, dir string, wait time.Duration) (unlock func(), err error) {
	return lockOf(ctx, dir, "lock", wait)
}

func lockOf(ctx context.Context, dir, file string, wait time.Duration) (unlock func(), err error) {
	unlock, err = lock(ctx, filepath.Join(dir, file), wait)
	if errors.Is(err, unix.EWOULDBLOCK) || ctx.Err() != nil && err != nil {
		err = fmt.Errorf("another patchbayd %s runs: %w", filepath.Base(dir), err)
	}
	return unlock, err
}

// gc of Docker's state may work when no driver runs, for minutes; one that starts
// must not answer Docker with errors meanwhile. So a driver has a second lock,
// which it takes first: gc, which looks at it, lets go then.
const (
	driverLock = "driver"
	gcLooks    = 100 * time.Millisecond // how often
	lookTime   = time.Second            // more than a look takes
	gcTime     = 30 * time.Second       // more than gc takes to let go; calls wait at the socket
)

// driverAlone is alone for the driver. It waits for gc, and for no other driver.
func driverAlone(ctx context.Context, dir string) (unlock func(), err error) {
	only, err := lockOf(ctx, dir, driverLock, lookTime)
	if err != nil {
		return nil, err
	}
	state, err := alone(ctx, dir, gcTime)
	if err != nil {
		only()
		return nil, err
	}
	return func() { state(); only() }, nil
}

// untilDriver ends a context, with an error that wraps unix.EWOULDBLOCK, when a
// driver wants the state.
func untilDriver(ctx context.Context, dir string) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for sleep.For(ctx, gcLooks) {
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
