// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/spec"
)

// Lock locks the file at path. Lock creates a missing file with mode 0600 and does not follow
// symbolic links. If ctx ends before the lock is free, the error wraps the cause of ctx.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	fd, err := flock.At(ctx, path, flock.Options{Create: 0o600, Write: true})
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: tryAgain(err)}
	}
	return func() { unix.Close(fd) }, nil //nolint:errcheck // nothing was written
}

// LockDir locks an existing directory. LockDir waits at most 30 seconds.
func LockDir(ctx context.Context, path string) (unlock func(), err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	unlock = func() { unix.Close(fd) } //nolint:errcheck // nothing was written
	if err := flock.On(ctx, fd, flock.Options{Patience: patience}); err != nil {
		unlock()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: tryAgain(err)}
	}
	return unlock, nil
}

// Locked reports whether another process holds the exclusive lock on a file. If it cannot look, or if
// the file is missing, it returns false. While it looks, it holds a shared lock for a few microseconds,
// so who takes the lock should try again for some time.
func Locked(path string) bool {
	fd, locked, err := flock.Try(path, flock.Options{Shared: true})
	if err == nil && !locked {
		unix.Close(fd) //nolint:errcheck // nothing was written
	}
	return locked
}

// patience is how long an operation waits for a lock. No process normally holds a lock that long,
// and a runtime waits longer for a plugin.
const patience = 30 * time.Second

// WithLockLimit limits the wait for a lock to 30 seconds, and to half of the time that ctx has
// left. It serves operations that continue without the lock, such as a DEL.
func WithLockLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, limit(ctx))
}

func limit(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(patience, time.Until(end)/2)
	}
	return patience
}

// LockAt works like flock.At within the limit of WithLockLimit. If another process keeps the lock, the error has
// the code by which a runtime tries again.
func LockAt(ctx context.Context, path string, o flock.Options) (fd int, err error) {
	o.Patience = limit(ctx)
	fd, err = flock.At(ctx, path, o)
	return fd, tryAgain(err)
}

// LockExclusiveLimited locks an open file within the limit of WithLockLimit. Closing the file releases the lock.
// If another process keeps the lock, the error names it.
func LockExclusiveLimited(ctx context.Context, fd int) error {
	return tryAgain(flock.On(ctx, fd, flock.Options{Patience: limit(ctx)}))
}

// LockSharedLimited takes a shared lock, which excludes only exclusive locks, within the limit of
// WithLockLimit.
func LockSharedLimited(ctx context.Context, fd int) error {
	return tryAgain(flock.On(ctx, fd, flock.Options{Shared: true, Patience: limit(ctx)}))
}

// tryAgain gives the error of a lock that another process keeps its CNI code.
func tryAgain(err error) error {
	var locked *flock.LockedError
	if !errors.As(err, &locked) {
		return err
	}
	return spec.Errorf(spec.CodeTryAgain, "%w", locked).
		WithDetails("a process that hangs or is stopped keeps its locks until it ends: look at it, end it if so, and try again")
}
