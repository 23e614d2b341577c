// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile writes a file whole or not at all, and leaves nothing
// beside it when the process is killed: the data goes into a file without a
// name, which is then linked to its place (O_TMPFILE, Linux 3.11). There is no
// fsync; docs/adr/0005-no-fsync-on-add.md says why. WriteSynced is for what a
// power loss must not take.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// suffix names the file a replacement passes through. It is the same for every
// process, so what a killed one left is overwritten or removed by the next.
const suffix = "~"

// IsTemp says whether a directory entry is such a file.
func IsTemp(name string) bool { return len(name) > 0 && name[len(name)-1] == suffix[0] }

// Write makes path hold data, mode 0600. Symbolic links at path are replaced,
// never followed. The directory must exist.
func Write(path string, data []byte) error {
	fd, err := place(path, data, how{})
	if err != nil {
		return err
	}
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// WriteLocked is Write with an exclusive flock(2) on the file from before it has
// its name until the caller closes fd.
func WriteLocked(path string, data []byte) (fd int, err error) {
	return place(path, data, how{lock: true})
}

// CreateLocked is WriteLocked of a file that must not be there: else the error
// wraps fs.ErrExist.
func CreateLocked(path string, data []byte) (fd int, err error) {
	return place(path, data, how{lock: true, create: true})
}

// how a file is placed.
type how struct{ lock, create bool }

// place writes and returns the open file.
func place(path string, data []byte, how how) (fd int, err error) {
	fd, err = unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return placeNamed(path, data, how)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "write", Path: path, Err: err}
	}
	if err = fill(fd, data, how.lock); err == nil {
		err = link(fd, path, how.create)
	}
	if err != nil {
		return -1, fmt.Errorf("write %s: %w", path, errors.Join(err, unix.Close(fd)))
	}
	return fd, nil
}

// fill writes what nobody else can see yet, so its lock is free to take. A file
// system without locks has none to offer.
func fill(fd int, data []byte, lock bool) error {
	if lock {
		_ = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	return writeAll(fd, data)
}

// ErrIrregular is wrapped when there is something else than a regular file of
// a sane size: a symbolic link, a pipe that nobody would ever write to.
var ErrIrregular = errors.New("not a regular file of ours")

// maxSize is more than any state file of ours holds, in bytes, but for those whose
// writer says so.
const maxSize = 1 << 20

// Read returns what a state file says. It follows no symbolic link, waits for
// no pipe and reads 1 MiB at most. The error of a missing file wraps
// fs.ErrNotExist.
func Read(path string) ([]byte, error) { return ReadUpTo(path, maxSize) }

// ReadUpTo is Read of limit bytes at most. Who writes more will never read it.
func ReadUpTo(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: %w", ErrIrregular, err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > limit {
		return nil, fmt.Errorf("%w: %v of %d bytes", ErrIrregular, fi.Mode(), fi.Size())
	}
	data := make([]byte, fi.Size())
	n, err := io.ReadFull(f, data)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil // cut short meanwhile
	}
	return data[:n], err
}

// Remove deletes path and what a killed replacement left beside it. A missing
// file is no error.
func Remove(path string) error {
	return errors.Join(remove(path), remove(path+suffix))
}

// remove looks when it fails: a read-only file system refuses before it knows
// whether the file is there.
func remove(path string) error {
	err := unix.Unlink(path)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(unix.Lstat(path, new(unix.Stat_t)), unix.ENOENT) {
		return nil
	}
	return &fs.PathError{Op: "remove", Path: path, Err: err}
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// link gives the nameless file its name; one that is taken is replaced by
// renaming.
func link(fd int, path string, create bool) error {
	self := fmt.Sprintf("/proc/self/fd/%d", fd)
	err := unix.Linkat(unix.AT_FDCWD, self, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if create || !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := remove(path + suffix); err != nil {
		return err
	}
	if err := unix.Linkat(unix.AT_FDCWD, self, unix.AT_FDCWD, path+suffix, unix.AT_SYMLINK_FOLLOW); err != nil {
		return err
	}
	return unix.Rename(path+suffix, path)
}

// placeNamed is for file systems without O_TMPFILE (some overlays, NFS).
func placeNamed(path string, data []byte, how how) (fd int, err error) {
	if err := remove(path + suffix); err != nil {
		return -1, err
	}
	fd, err = unix.Open(path+suffix, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, &fs.PathError{Op: "write", Path: path, Err: err}
	}
	if err = fill(fd, data, how.lock); err == nil {
		err = rename(path, how.create)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd), remove(path+suffix))
	}
	return fd, nil
}

// rename gives the file its last name.
func rename(path string, create bool) error {
	if !create {
		return os.Rename(path+suffix, path)
	}
	if err := os.Link(path+suffix, path); err != nil {
		return err
	}
	return remove(path + suffix)
}
