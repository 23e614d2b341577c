// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package flock waits for flock(2), at most until it is told to stop: the kernel's
// own wait cannot be ended, and would keep a thread. A lock ends with the process
// that has it, so one that hangs, or is stopped, keeps it.
package flock

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/spec"
)

// patience is how long an operation waits for one lock: longer than any holder
// works under it, shorter than a runtime waits for a plugin.
const patience = 30 * time.Second

// How long it takes at first, and at most, to ask again.
const (
	step    = 200 * time.Microsecond
	stepMax = 20 * time.Millisecond
)

// Within bounds the wait for one lock in an operation that has more to do, whether
// or not it gets the lock, as a DEL has: to 30 seconds, and to half of what ctx
// has left.
func Within(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := patience
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	return context.WithTimeout(ctx, limit)
}

// Exclusive takes the lock of an open file, which closing it gives back. Its error
// names the process that keeps it.
func Exclusive(ctx context.Context, fd int) error { return take(ctx, fd, unix.LOCK_EX) }

// Shared is Exclusive for who keeps only the exclusive ones out.
func Shared(ctx context.Context, fd int) error { return take(ctx, fd, unix.LOCK_SH) }

func take(ctx context.Context, fd, how int) error {
	for wait := step; ; wait = min(2*wait, stepMax) {
		err := unix.Flock(fd, how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if !sleep.For(ctx, wait) {
			return Taken(ctx, fd)
		}
	}
}

// Taken is the error of a wait for the lock of fd that ends with ctx.
func Taken(ctx context.Context, fd int) error {
	return spec.Errorf(spec.CodeTryAgain, "%s: %w", holderOf(fd), context.Cause(ctx)).
		WithDetails("a process that hangs or is stopped keeps its locks until it ends: look at it, end it if so, and try again")
}
