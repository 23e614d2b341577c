// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/patchbay-net/patchbay/internal/statedir"
)

// Locks are files under RunDir/locks, held by flock(2), so they end with the
// process that took them. The order is always: gate, operations, container.
//
//	gate        held by a waiting GC, so that new ADDs cannot starve it
//	operations  shared by ADD and DEL, exclusive for GC
//	ID.lock     one operation a container at a time; removed by the last one
const (
	gateLock       = "gate.lock"
	operationsLock = "operations.lock"
)

// lockStep is how long it takes at first, and at most, to ask again for a lock:
// a blocking flock could not be cancelled.
const (
	lockStep    = time.Millisecond
	lockStepMax = 20 * time.Millisecond
)

// lockAttachment is for ADD and DEL: no GC, and alone with the container.
func (rt *Runtime) lockAttachment(ctx context.Context, containerID string) (unlock func(), err error) {
	gate, err := rt.lock(ctx, gateLock, syscall.LOCK_SH)
	if err != nil {
		return nil, err
	}
	operations, err := rt.lock(ctx, operationsLock, syscall.LOCK_SH)
	gate()
	if err != nil {
		return nil, err
	}
	container, err := rt.lockContainer(ctx, containerID)
	if err != nil {
		operations()
		return nil, err
	}
	return func() { container(); operations() }, nil
}

// lockAll is for GC: no ADD and no DEL.
func (rt *Runtime) lockAll(ctx context.Context) (unlock func(), err error) {
	gate, err := rt.lock(ctx, gateLock, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	operations, err := rt.lock(ctx, operationsLock, syscall.LOCK_EX)
	if err != nil {
		gate()
		return nil, err
	}
	return func() { operations(); gate() }, nil
}

// lockContainer removes its file when it is done, while it holds the lock.
// Somebody who waits for the removed file notices (sameFile) and starts anew.
// containerID is a validated name.
func (rt *Runtime) lockContainer(ctx context.Context, containerID string) (unlock func(), err error) {
	name := containerID + ".container.lock"
	release, err := rt.lock(ctx, name, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() {
		_ = os.Remove(filepath.Join(rt.locks(), name)) // an empty file that stays harms nobody
		release()
	}, nil
}

// lock takes one lock, asking until ctx ends.
func (rt *Runtime) lock(ctx context.Context, name string, how int) (release func(), err error) {
	path := filepath.Join(rt.locks(), name)
	for wait := lockStep; ; wait = min(2*wait, lockStepMax) {
		f, err := tryLock(path, how)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if f != nil {
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", path, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// tryLock returns nil without an error when somebody else holds the lock.
func tryLock(path string, how int) (*os.File, error) {
	f, err := openLock(path)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	if err == nil && sameFile(f, path) {
		return f, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
		err = nil
	}
	return nil, errors.Join(err, f.Close())
}

// openLock makes the directory only when it is missing.
func openLock(path string) (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	runDir, locks := filepath.Split(filepath.Dir(path))
	if err := statedir.Check(filepath.Clean(runDir), locks); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, flags, 0o600)
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}
