// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/flock"
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

// gateTime is how long a GC that waits for a running ADD or DEL blocks new ones at most.
const gateTime = 10 * time.Second

// lockAttachment takes the locks for ADD and DEL. While they are held, no GC runs on the network
// and no other operation on the container.
func (rt *Runtime) lockAttachment(ctx context.Context, network, containerID string) (unlock func(), err error) {
	gate, err := rt.lock(ctx, lockName(network, gateLock), flock.Options{Shared: true})
	if err != nil {
		return nil, err
	}
	operations, err := rt.lock(ctx, lockName(network, operationsLock), flock.Options{Shared: true})
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
	gate, err := rt.lock(ctx, lockName(network, gateLock), flock.Options{})
	if err != nil {
		return nil, err
	}
	operations, err := rt.lock(ctx, lockName(network, operationsLock), flock.Options{Patience: gateTime})
	if err != nil {
		gate()
		return nil, err
	}
	return func() { operations(); gate() }, nil
}

// Exclusive runs fn while no ADD, DEL or GC of this runtime works in the network. Exclusive
// serves callers that remove or change the network itself. If WithFileDecides is set, an ADD that
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
// process that waits on the removed file notices that it is gone, and starts again.
// containerID must be a validated name.
func (rt *Runtime) lockContainer(ctx context.Context, containerID string) (unlock func(), err error) {
	name := lockName(containerID, containerLock)
	release, err := rt.lock(ctx, name, flock.Options{})
	if err != nil {
		return nil, err
	}
	return rt.unlockContainer(name, release), nil
}

// tryContainer works like lockContainer, but does not wait. If another operation has the lock, unlock is nil.
func (rt *Runtime) tryContainer(containerID string) (unlock func(), err error) {
	name := lockName(containerID, containerLock)
	path, err := rt.lockPath(name)
	if err != nil {
		return nil, err
	}
	fd, locked, err := flock.Try(path, flock.Options{Create: lockMode, Write: true})
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if locked {
		return nil, nil
	}
	return rt.unlockContainer(name, func() { _ = syscall.Close(fd) }), nil
}

func (rt *Runtime) unlockContainer(name string, release func()) func() {
	return func() {
		_ = os.Remove(filepath.Join(rt.locks(), name)) // an empty file left behind harms nothing
		release()
	}
}

// lock takes one lock. It tries until ctx ends or the time limit is over. The limit is Limits.Lock
// or, if o.Patience is set and shorter, o.Patience. If lock fails, its error names the process that holds the
// lock.
func (rt *Runtime) lock(ctx context.Context, name string, o flock.Options) (release func(), err error) {
	o.Patience = min(rt.limits.Lock, cmp.Or(o.Patience, rt.limits.Lock))
	path, err := rt.lockPath(name)
	if err != nil {
		return nil, err
	}
	o.Create, o.Write = lockMode, true
	fd, err := flock.At(ctx, path, o)
	var locked *flock.LockedError
	switch {
	case errors.As(err, &locked):
		return nil, spec.Errorf(spec.CodeTryAgain, "wait for %s: %w", path, locked.Cause).WithDetails("%s", locked.Holder)
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = syscall.Close(fd) }, nil
}

const lockMode = 0o600

// lockPath returns the path of a lock file, and makes its directory.
func (rt *Runtime) lockPath(name string) (string, error) {
	path := filepath.Join(rt.locks(), name)
	runDir, locks := filepath.Split(rt.locks())
	if err := durable.MakeDir(filepath.Clean(runDir), locks); err != nil {
		return "", fmt.Errorf("lock %s: %w", path, err)
	}
	return path, nil
}
