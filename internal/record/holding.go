// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// ErrReleased means that an attachment no longer holds a fact: a DEL of the attachment ran meanwhile.
var ErrReleased = errors.New("it was released meanwhile")

// WhileHolding runs fn, which commits the elements of the named facts for their holder o. Release waits
// meanwhile: otherwise a DEL of o, which finds no elements yet, could remove the facts before fn commits. If a
// DEL has released one of the facts, WhileHolding returns ErrReleased, wrapped, and does not run fn.
func (d *Dir) WhileHolding(ctx context.Context, names []string, o owner.Key, fn func() error) error {
	for _, name := range names {
		unlock, err := lockReference(ctx, d.Reference(name, o))
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrReleased
		}
		if err != nil {
			return fmt.Errorf("hold %s: %w", name, err)
		}
		defer unlock()
	}
	return fn()
}

// lockReference locks the file that makes an attachment a holder, within the limit of
// durable.WithLockLimit. If the file is missing, the error wraps fs.ErrNotExist. unlock is never nil.
func lockReference(ctx context.Context, path string) (unlock func(), err error) {
	fd, err := durable.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return func() {}, err
	}
	unlock = func() { unix.Close(fd) } //nolint:errcheck // read only
	if err := durable.LockExclusiveLimited(ctx, fd); err != nil {
		unlock()
		return func() {}, fmt.Errorf("lock %s: %w", path, err)
	}
	if !flock.IsAt(fd, 0, path) {
		unlock()
		return func() {}, &fs.PathError{Op: "lock", Path: path, Err: fs.ErrNotExist}
	}
	return unlock, nil
}
