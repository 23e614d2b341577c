// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package flock locks files with flock(2), also files that other processes may remove and make again.
// No other package calls flock, or judges whether an open file is still the one at its path.
//
// A lock belongs to an open file, so closing its descriptor releases the lock, and the lock ends with
// the process that holds it. So a process that hangs or is stopped keeps its lock. Functions that wait
// ask again and again. They do not use the kernel's own wait, because it cannot be interrupted and
// blocks a thread.
package flock

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// Options say how to lock. The zero value is an exclusive lock.
type Options struct {
	Shared   bool          // a lock that excludes only exclusive locks
	Patience time.Duration // how long to wait at most; At and On with 0 wait until the context ends

	// At and Try open the file with these. They do not follow a symbolic link.
	Create fs.FileMode // mode of a file that is made if it is missing; if 0, a missing file is an error
	Write  bool        // for writing too: NFS has exclusive locks only for such a file
	Dir    int         // an open directory to which the path is relative; 0 is none
}

// These are the shortest and the longest pause between two attempts.
const (
	step    = 200 * time.Microsecond
	stepMax = 20 * time.Millisecond
)

// LockedError means that the time ended while another process had the lock.
type LockedError struct {
	Holder string // says which process
	Cause  error  // what ended the wait
}

// Error says who holds the lock, and what ended the wait.
func (e *LockedError) Error() string { return e.Holder + ": " + e.Cause.Error() }

// Unwrap returns what ended the wait.
func (e *LockedError) Unwrap() error { return e.Cause }

// At opens the file at path and locks it. If another process removes the file meanwhile, At starts again, so
// the locked file is the one at path. If the lock does not become free in time, the error is a *LockedError.
func At(ctx context.Context, path string, o Options) (fd int, err error) {
	w := o.waiter(ctx)
	return at(path, o, w.named)
}

// Try does what At does, but waits only for Patience, also if that is 0. If another process still has the lock,
// Try returns no descriptor (-1) and no error.
func Try(path string, o Options) (fd int, locked bool, err error) {
	w := waiter{context.Background(), o.Shared, time.Now().Add(o.Patience)}
	fd, err = at(path, o, w.lock)
	if isLocked(err) {
		return -1, true, nil
	}
	return fd, false, err
}

func isLocked(err error) bool {
	var locked *LockedError
	return errors.As(err, &locked)
}

// at opens and locks the file at path until the locked file is the one at path.
func at(path string, o Options, lock func(fd int) error) (fd int, err error) {
	for {
		fd, err := open(path, o)
		if err != nil {
			return -1, err
		}
		if err := lock(fd); err != nil {
			unix.Close(fd) //nolint:errcheck // nothing was written
			return -1, err
		}
		if IsAt(fd, o.Dir, path) {
			return fd, nil
		}
		unix.Close(fd) //nolint:errcheck // nothing was written
	}
}

func open(path string, o Options) (fd int, err error) {
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	if o.Write {
		flags |= unix.O_RDWR
	}
	if o.Create != 0 {
		flags |= unix.O_CREAT
	}
	for {
		fd, err = unix.Openat(from(o.Dir), path, flags, uint32(o.Create))
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// from returns the descriptor that stands for a directory in system calls.
func from(dir int) int { return cmp.Or(dir, unix.AT_FDCWD) }

// On locks an open file or directory. If the lock does not become free in time, the error is a *LockedError.
func On(ctx context.Context, fd int, o Options) error {
	w := o.waiter(ctx)
	return w.named(fd)
}

// waiter waits for one lock, perhaps of several files one after the other.
type waiter struct {
	ctx    context.Context
	shared bool
	end    time.Time // zero: when ctx ends
}

func (o *Options) waiter(ctx context.Context) waiter {
	w := waiter{ctx: ctx, shared: o.Shared}
	if o.Patience > 0 {
		w.end = time.Now().Add(o.Patience)
	}
	return w
}

// lock starts no timer for a lock that is free, because the first timer of a process starts Go's poller.
func (w waiter) lock(fd int) error {
	for pause := step; ; pause = min(2*pause, stepMax) {
		locked, err := TryOn(fd, w.shared)
		if !locked {
			return err
		}
		if !w.end.IsZero() && !time.Now().Before(w.end) {
			return &LockedError{unknown, context.DeadlineExceeded}
		}
		select {
		case <-time.After(pause):
		case <-w.ctx.Done():
			return &LockedError{unknown, context.Cause(w.ctx)}
		}
	}
}

// named works like lock, and finds out who has the lock.
func (w waiter) named(fd int) error {
	err := w.lock(fd)
	var locked *LockedError
	if errors.As(err, &locked) {
		locked.Holder = holderOf(fd)
	}
	return err
}

// TryOn locks an open file or directory without waiting. If locked is set, another process has the lock.
func TryOn(fd int, shared bool) (locked bool, err error) {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	err = unix.Flock(fd, how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return true, nil
	}
	return false, err
}

// IsAt reports whether path leads to the open file. dir is as in Options.
func IsAt(fd, dir int, path string) bool {
	var open, there unix.Stat_t
	if unix.Fstat(fd, &open) != nil || unix.Fstatat(from(dir), path, &there, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return false
	}
	return open.Dev == there.Dev && open.Ino == there.Ino
}
