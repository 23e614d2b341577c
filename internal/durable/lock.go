// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/spec"
)

// Lock locks the file at path. Lock creates a missing file with mode 0600 and does not follow
// symbolic links. If ctx ends before the lock is free, the error wraps the cause of ctx.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	unlock = func() { unix.Close(fd) } //nolint:errcheck // nothing was written
	if err := LockExclusive(ctx, fd); err != nil {
		unlock()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return unlock, nil
}

// LockDir locks an existing directory. LockDir waits at most 30 seconds.
func LockDir(ctx context.Context, path string) (unlock func(), err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	unlock = func() { unix.Close(fd) } //nolint:errcheck // nothing was written
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := LockExclusive(bounded, fd); err != nil {
		unlock()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return unlock, nil
}

// patience is how long an operation waits for a lock. No process normally holds a lock that long,
// and a runtime waits longer for a plugin.
const patience = 30 * time.Second

// These are the shortest and the longest pause between two attempts.
const (
	step    = 200 * time.Microsecond
	stepMax = 20 * time.Millisecond
)

// WithLockLimit limits the wait for a lock to 30 seconds, and to half of the time that ctx has
// left. It serves operations that continue without the lock, such as a DEL.
func WithLockLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := patience
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	return context.WithTimeout(ctx, limit)
}

// LockExclusive locks an open file. Closing the file releases the lock. If LockExclusive fails,
// its error names the process that holds the lock.
func LockExclusive(ctx context.Context, fd int) error { return take(ctx, fd, unix.LOCK_EX) }

// LockExclusiveLimited works like LockExclusive within the limit of WithLockLimit.
func LockExclusiveLimited(ctx context.Context, fd int) error {
	return takeLimited(ctx, fd, unix.LOCK_EX)
}

// LockSharedLimited takes a shared lock, which excludes only exclusive locks, within the limit of
// WithLockLimit.
func LockSharedLimited(ctx context.Context, fd int) error { return takeLimited(ctx, fd, unix.LOCK_SH) }

// takeLimited starts no timer for a lock that is free, because the first timer of a process starts
// Go's poller.
func takeLimited(ctx context.Context, fd, how int) error {
	if err := unix.Flock(fd, how|unix.LOCK_NB); !isHeld(err) {
		return err
	}
	ctx, cancel := WithLockLimit(ctx)
	defer cancel()
	return take(ctx, fd, how)
}

func isHeld(err error) bool { return errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) }

func take(ctx context.Context, fd, how int) error {
	for wait := step; ; wait = min(2*wait, stepMax) {
		err := unix.Flock(fd, how|unix.LOCK_NB)
		if !isHeld(err) {
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

// LockHolder describes the processes that hold the lock of the file at path. The kernel's list
// (proc(5), /proc/locks) names the process that took the lock. A process that inherited the lock
// is not in the list.
func LockHolder(path string) string {
	var st unix.Stat_t

	if unix.Stat(path, &st) != nil {
		return unknown
	}
	return holders(&st)
}

func holderOf(fd int) string {
	var st unix.Stat_t

	if unix.Fstat(fd, &st) != nil {
		return unknown
	}
	return holders(&st)
}

const unknown = "another process holds it"

func holders(st *unix.Stat_t) string {
	list, err := os.ReadFile("/proc/locks")
	if err != nil {
		return unknown
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino) //nolint:unconvert // Dev is 32 bits wide on some architectures
	var found []string
	for _, line := range strings.Split(string(list), "\n") {
		// A line has the format "1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF". The line of a
		// waiting process has "->" before FLOCK.
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && f[5] == file && f[4] != "0" {
			name, _ := os.ReadFile("/proc/" + f[4] + "/comm")
			found = append(found, strings.TrimSpace(f[4]+" "+string(name)))
		}
	}
	if len(found) == 0 {
		return unknown
	}
	return "held by process " + strings.Join(found, ", ")
}
