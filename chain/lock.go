// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/spec"
)

// Locks are files under RunDir/locks, held by flock(2), so they end with the process that
// took them. Each network has its own, so that a hanging plugin blocks one network only.
// The order is always: gate, operations, container.
//
//	NETWORK.gate.lock        held by a waiting GC, so that new ADDs cannot starve it
//	NETWORK.operations.lock  shared by ADD and DEL, exclusive for GC and Exclusive
//	ID.container.lock        one operation a container at a time; removed by the last one
const (
	gateLock       = ".gate.lock"
	operationsLock = ".operations.lock"
	containerLock  = ".container.lock"
)

// The first and the longest interval between two tries to get a lock: a blocking flock
// could not be cancelled.
const (
	lockStep    = time.Millisecond
	lockStepMax = 20 * time.Millisecond
)

// lockTime is the default of LockTime. gateTime is how much of it a GC blocks new ADDs and
// DELs while it waits for one that does not end.
const (
	lockTime = time.Minute
	gateTime = 10 * time.Second
)

// lockAttachment is for ADD and DEL: no GC of the network runs, and no other operation on
// the container.
func (rt *Runtime) lockAttachment(ctx context.Context, network, containerID string) (unlock func(), err error) {
	gate, err := rt.lock(ctx, lockName(network, gateLock), syscall.LOCK_SH, 0)
	if err != nil {
		return nil, err
	}
	operations, err := rt.lock(ctx, lockName(network, operationsLock), syscall.LOCK_SH, 0)
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

// lockNetwork is for GC: no ADD and no DEL in the network.
func (rt *Runtime) lockNetwork(ctx context.Context, network string) (unlock func(), err error) {
	gate, err := rt.lock(ctx, lockName(network, gateLock), syscall.LOCK_EX, 0)
	if err != nil {
		return nil, err
	}
	operations, err := rt.lock(ctx, lockName(network, operationsLock), syscall.LOCK_EX, gateTime)
	if err != nil {
		gate()
		return nil, err
	}
	return func() { operations(); gate() }, nil
}

// Exclusive runs fn while no ADD, DEL or GC of this runtime works in a network: for callers
// that remove or change the network itself. With FileDecides an ADD that waited checks the
// network's file again.
func (rt *Runtime) Exclusive(ctx context.Context, network string, fn func() error) error {
	if err := spec.ValidateNetworkName(network); err != nil {
		return err
	}
	unlock, err := rt.lockNetwork(ctx, network)
	if err != nil {
		return err
	}
	defer unlock()
	return fn()
}

// lockName is a file name made of a validated name, cut to the length that a file name may
// have: two long names may share a lock.
func lockName(name, suffix string) string { return name[:min(len(name), 200)] + suffix }

// lockContainer removes its file when it is done, while it holds the lock. Another process
// that waits for the removed file notices (sameFile) and starts over. containerID is a
// validated name.
func (rt *Runtime) lockContainer(ctx context.Context, containerID string) (unlock func(), err error) {
	name := lockName(containerID, containerLock)
	release, err := rt.lock(ctx, name, syscall.LOCK_EX, 0)
	if err != nil {
		return nil, err
	}
	return func() {
		_ = os.Remove(filepath.Join(rt.locks(), name)) // an empty file left behind harms nothing
		release()
	}, nil
}

// lock takes one lock, trying until ctx ends or the time is over: LockTime, or most if that
// is less and not zero. Its error names the process that holds the lock.
func (rt *Runtime) lock(ctx context.Context, name string, how int, most time.Duration) (release func(), err error) {
	limit := cmp.Or(rt.LockTime, lockTime)
	if most > 0 {
		limit = min(limit, most)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
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
			return nil, spec.Errorf(spec.CodeTryAgain, "wait for %s: %w", path, ctx.Err()).
				WithDetails("%s", durable.LockHolder(path))
		case <-time.After(wait):
		}
	}
}

// tryLock returns nil without an error when another process holds the lock.
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
	if err := durable.CheckDir(filepath.Clean(runDir), locks); err != nil {
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
