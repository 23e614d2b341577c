// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package flock waits for flock(2), at most until somebody says stop: the kernel's
// own wait cannot be ended. A lock ends with the process that has it.
package flock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/sleep"
)

// How long it takes at first, and at most, to ask again.
const (
	step    = time.Millisecond
	stepMax = 20 * time.Millisecond
)

// Exclusive takes the lock of an open file, which closing it gives back.
func Exclusive(ctx context.Context, fd int) error {
	for wait := step; ; wait = min(2*wait, stepMax) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if !sleep.For(ctx, wait) {
			return fmt.Errorf("another process holds it: %w", context.Cause(ctx))
		}
	}
}
