// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/flock"
)

// Some files are written under a name: those of WriteSynced and WriteDurable, and on file systems without
// O_TMPFILE (some overlays, NFS) all. The writers of a file share the name of its temporary file, so the one
// that has it locks it, and the others wait. The lock ends with a killed writer, and the next one removes what
// it left.

// underName writes the file under the temporary name and renames it.
func (p *put) underName() (fd int, err error) {
	fd, err = p.openTemp()
	if err != nil {
		return -1, err
	}
	if err = p.fillTemp(fd); err == nil {
		err = p.rename()
	}
	if err != nil {
		return -1, errors.Join(err, remove(p.Dir, p.Temp), unix.Close(fd))
	}
	return fd, nil
}

// access says how the descriptor that keeps the lock is open. A file that is open for writing cannot be executed,
// so for a synced file, which may be a program, that descriptor cannot write. NFS has locks only for one that can.
func (p *put) access() int {
	if p.synced {
		return unix.O_RDONLY
	}
	return unix.O_WRONLY
}

func (p *put) fillTemp(lock int) error {
	if !p.synced {
		return p.fill(lock)
	}
	fd, err := unix.Openat(from(p.Dir), p.Temp, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return asConcurrent(err, unix.ENOENT)
	}
	return errors.Join(p.fill(fd), unix.Close(fd))
}

// openTemp makes the temporary file, and locks it if the file system has locks.
func (p *put) openTemp() (fd int, err error) {
	if err := p.removeStale(); err != nil {
		return -1, err
	}
	fd, err = unix.Openat(from(p.Dir), p.Temp, p.access()|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, asConcurrent(err, unix.EEXIST)
	}
	if locked, _ := flock.TryOn(fd, false); locked || !flock.IsAt(fd, p.Dir, p.Temp) { // another writer removes it as a killed one's
		return -1, errors.Join(errConcurrent, unix.Close(fd))
	}
	return fd, nil
}

// removeStale removes the temporary file of a killed writer. It waits for a writer that has locked it.
func (p *put) removeStale() error {
	fd, err := unix.Openat(from(p.Dir), p.Temp, p.access()|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return remove(p.Dir, p.Temp) // a link
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	err = flock.On(context.Background(), fd, flock.Options{Patience: patience})
	var locked *flock.LockedError
	if errors.As(err, &locked) {
		return tryAgain(err)
	}
	if !flock.IsAt(fd, p.Dir, p.Temp) {
		return errConcurrent
	}
	return remove(p.Dir, p.Temp)
}

// rename gives the temporary file its final name.
func (p *put) rename() error {
	dir := from(p.Dir)
	if !p.New {
		return asConcurrent(unix.Renameat(dir, p.Temp, dir, p.path), unix.ENOENT)
	}
	if err := unix.Linkat(dir, p.Temp, dir, p.path, 0); err != nil {
		return err
	}
	return remove(p.Dir, p.Temp)
}

// asConcurrent adds errConcurrent to the error by which one notices another writer: EEXIST if the temporary file comes, ENOENT
// if it should get its path.
func asConcurrent(err error, sign unix.Errno) error {
	if errors.Is(err, sign) {
		return fmt.Errorf("%w: %w", errConcurrent, err)
	}
	return err
}
