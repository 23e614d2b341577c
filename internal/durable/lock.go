// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"io/fs"

	"golang.org/x/sys/unix"
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
