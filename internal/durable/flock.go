// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/spec"
)

// patience is how long an operation waits for a lock. patience is longer than any process
// normally holds a lock, and shorter than a runtime waits for a plugin.
const patience = 30 * time.Second

// These are the shortest and the longest pause between two attempts.
const (
	step    = 200 * time.Microsecond
	stepMax = 20 * time.Millisecond
)

// WithLockLimit limits the wait for a lock to 30 seconds and to half of the time that ctx has
// left. WithLockLimit serves operations that continue without the lock, such as a DEL.
func WithLockLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := patience
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	return context.WithTimeout(ctx, limit)
}

// LockExclusive locks an open file. Closing the file releases the lock. If it fails, the error
// names the process that holds the lock.
func LockExclusive(ctx context.Context, fd int) error { return take(ctx, fd, unix.LOCK_EX) }

// LockShared works like LockExclusive for a shared lock, which excludes only exclusive locks.
func LockShared(ctx context.Context, fd int) error { return take(ctx, fd, unix.LOCK_SH) }

func take(ctx context.Context, fd, how int) error {
	for wait := step; ; wait = min(2*wait, stepMax) {
		err := unix.Flock(fd, how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if !clock.Sleep(ctx, wait) {
			return ErrLocked(ctx, fd)
		}
	}
}

// ErrLocked returns the error of an operation whose ctx ended before it got the lock of fd.
func ErrLocked(ctx context.Context, fd int) error {
	return spec.Errorf(spec.CodeTryAgain, "%s: %w", holderOf(fd), context.Cause(ctx)).
		WithDetails("a process that hangs or is stopped keeps its locks until it ends: look at it, end it if so, and try again")
}
