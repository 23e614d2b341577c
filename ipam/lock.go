// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// lock takes the flock(2) that the reference takes, on the file "lock", and returns its
// descriptor; closing it unlocks. With shared set the file is not created and readers do
// not wait for each other; fd is -1 when there is no file.
func (d *dir) lock(ctx context.Context, shared bool) (fd int, err error) {
	ctx, cancel := durable.WithLockLimit(ctx)
	defer cancel()
	for {
		fd, err = d.openLock(shared)
		if err != nil || fd < 0 {
			return fd, err
		}
		how := unix.LOCK_EX
		if shared {
			how = unix.LOCK_SH
		}
		if err = take(ctx, fd, how); err != nil {
			return -1, fmt.Errorf("lock %s: %w", d.path, err)
		}
		// Another process may have removed the file while we waited, and a later caller
		// created it again.
		if d.sameFile(fd, lockName) {
			return fd, nil
		}
		closeFD(fd)
	}
}

func (d *dir) openLock(shared bool) (int, error) {
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	if !shared {
		flags |= unix.O_CREAT
	}
	fd, err := openat(d.fd, lockName, flags, 0o750)
	if shared && errors.Is(err, unix.ENOENT) {
		return -1, nil
	}
	if errors.Is(err, unix.ENOENT) { // the directory itself was removed
		return -1, d.pathError("lock", lockName, unix.ESTALE)
	}
	if err != nil {
		return -1, d.pathError("lock", lockName, err)
	}
	return fd, nil
}

func (d *dir) sameFile(fd int, name string) bool {
	var a, b unix.Stat_t
	if unix.Fstat(fd, &a) != nil || unix.Fstatat(d.fd, name, &b, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return false
	}
	return a.Dev == b.Dev && a.Ino == b.Ino
}

// take locks fd, or closes it and returns an error. A wait cannot be interrupted: when ctx
// ends first a goroutine remains that unlocks as soon as it gets the lock.
func take(ctx context.Context, fd, how int) error {
	err := unix.Flock(fd, how|unix.LOCK_NB)
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return closeOn(fd, err)
	}
	done := make(chan error, 1)
	go func() { done <- flockWait(fd, how) }()
	select {
	case err := <-done:
		return closeOn(fd, err)
	case <-ctx.Done():
		err := durable.ErrLocked(ctx, fd)
		go func() {
			<-done //nolint:errcheck // the lock is not wanted any more
			closeFD(fd)
		}()
		return err
	}
}

func closeOn(fd int, err error) error {
	if err != nil {
		closeFD(fd)
	}
	return err
}

func flockWait(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
