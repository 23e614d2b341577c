// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/flock"
)

// locked runs f with the lock: nobody else, of this process or another, reads or
// writes meanwhile, and f sees no change that is half made and no lease that is
// over.
func (s *Store) locked(ctx context.Context, f func() error) error {
	ctx, done := s.life.Until(ctx)
	defer done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	fd, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written to it
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.expire(); err != nil {
		return err
	}
	return f()
}

// lock waits for flock(2) until ctx ends, by asking: nobody holds it for long.
func (s *Store) lock(ctx context.Context) (fd int, err error) {
	path := filepath.Join(s.dir, "lock")
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	if err := flock.Exclusive(ctx, fd); err != nil {
		return -1, errors.Join(&fs.PathError{Op: "lock", Path: path, Err: err}, unix.Close(fd))
	}
	return fd, nil
}
