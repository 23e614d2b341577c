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

// The locks are files under RunDir/locks. A process holds a lock with flock(2), so the lock ends
// with the process. Each network has its own locks. So a plugin that hangs blocks only one
// network. Every process takes the locks in the order gate, operations, container.
//
//	NETWORK.gate.lock        held by a waiting GC, so that new ADDs cannot starve it
//	NETWORK.operations.lock  shared by ADD and DEL, exclusive for GC and Exclusive
//	ID.container.lock        one operation at a time per container; the last holder removes the file
const (
	gateLock       = ".gate.lock"
	operationsLock = ".operations.lock"
	containerLock  = ".container.lock"
)

// A process that waits for a lock tries again after lockStep. The pause grows up to lockStepMax.
// The process does not use a blocking flock, because nothing can cancel it.
const (
	lockStep    = time.Millisecond
	lockStepMax = 20 * time.Millisecond
)

// lockTime is the default of LockTime. While a GC waits for a running ADD or DEL, it blocks new
// ones for at most gateTime.
const (
	lockTime = time.Minute
	gateTime = 10 * time.Second
)

// lockAttachment takes the locks for ADD and DEL. While they are held, no GC runs on the network
// and no other operation on the container.
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

// lockNetwork takes the lock for GC. lockNetwork excludes every ADD and DEL in the network.
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

// Exclusive runs fn while no ADD, DEL or GC of this runtime works in the network. Exclusive
// serves callers that remove or change the network itself. If FileDecides is set, an ADD that
// waited for Exclusive checks the network's file again.
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

// lockName builds a file name from a validated name. lockName cuts a long name, because the file
// system limits file names. So two long names may share a lock.
func lockName(name, suffix string) string { return name[:min(len(name), 200)] + suffix }

// lockContainer locks a container. On release it first removes the lock file, then unlocks. A
// process that waits on the removed file notices with sameFile that it is gone, and starts again.
// containerID must be a validated name.
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

// lock takes one lock. It tries until ctx ends or the time limit is over. The limit is LockTime
// or, if most is set and shorter, most. If lock fails, its error names the process that holds the
// lock.
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
			return func() { _ = f.Close() }, nil // closing the file releases the lock
		}
		select {
		case <-ctx.Done():
			return nil, spec.Errorf(spec.CodeTryAgain, "wait for %s: %w", path, ctx.Err()).
				WithDetails("%s", durable.LockHolder(path))
		case <-time.After(wait):
		}
	}
}

// tryLock takes the lock without waiting. If another process holds the lock, tryLock returns nil
// and no error.
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

// openLock opens a lock file. If opening fails, openLock makes the directory and tries again.
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
