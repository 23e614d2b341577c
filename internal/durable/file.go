// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package durable writes and reads state files. A file is written completely or not at all,
// can be locked, and lies in a directory that no other user can change.
//
// The data goes to a file without a name, which then gets its path (O_TMPFILE, Linux 3.11). So a
// killed process leaves no temporary file. Only WriteSynced, WriteDurable and Sync call fsync. They
// serve files that must survive a power loss (docs/adr/0005-no-fsync-on-add.md).
//
// The locks are those of internal/flock. Functions that wait for one stop waiting when their context ends.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrIrregular means that path is not a regular file of acceptable size. It may be a symbolic
// link, or a pipe without a writer.
var ErrIrregular = errors.New("not a regular file of ours")

// maxSize is the size of the largest state file that Read accepts, in bytes. Callers of
// ReadUpTo set another limit.
const maxSize = 1 << 20

// Read returns the content of a state file of at most 1 MiB. Read does not follow symbolic
// links and does not wait for pipes. If the file is missing, the error wraps fs.ErrNotExist.
func Read(path string) ([]byte, error) { return ReadUpTo(path, maxSize) }

// ReadUpTo works like Read with another limit in bytes. The writer must not let the file grow
// beyond the limit, because it could not be read any more.
func ReadUpTo(path string, limit int64) ([]byte, error) {
	fd, err := Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: %w", ErrIrregular, err)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > limit {
		return nil, fmt.Errorf("%w: %s is of mode %#o and %d bytes", ErrIrregular, path, st.Mode, st.Size)
	}
	data, err := readFull(fd, make([]byte, st.Size))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return data, nil
}

// ReadProc returns the content of a file of procfs, whose size the kernel does not know before. The
// file has at most 4 KiB.
func ReadProc(path string) ([]byte, error) {
	fd, err := Open(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	data, err := readFull(fd, make([]byte, 4<<10))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return data, nil
}

// Open opens a file or directory and returns its descriptor. Open creates a new file with mode
// 0600. An os.File would need five more system calls to register with the poller, which
// refuses such files.
func Open(path string, flags int) (fd int, err error) {
	for {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// readFull fills data. If the file was made shorter in between, readFull returns only a part.
func readFull(fd int, data []byte) ([]byte, error) {
	for n := 0; n < len(data); {
		got, err := unix.Read(fd, data[n:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		if err == nil && got == 0 {
			return data[:n], nil
		}
		n += max(got, 0)
	}
	return data, nil
}

// Remove deletes path and the temporary file that a killed writer left. Remove accepts that
// they are missing.
func Remove(path string) error { return errors.Join(remove(0, path), remove(0, path+suffix)) }

// remove deletes a file, relative to a directory as in How. If unlink fails, remove checks whether the file
// exists: on a read-only file system, unlink fails even for a missing file.
func remove(dir int, path string) error {
	err := unix.Unlinkat(from(dir), path, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(unix.Fstatat(from(dir), path, new(unix.Stat_t), unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT) {
		return nil
	}
	return &fs.PathError{Op: "remove", Path: path, Err: err}
}

// ErrForeign means that the caller does not own the file, so Update does not replace it.
var ErrForeign = errors.New("it is another program's")

// Update works like WriteDurable for a file that other programs read and watch, and may write.
// Update writes only if the content is different, and replaces only a file that is ours. If the
// directory is missing, Update makes it. changed reports whether Update wrote the file.
func Update(path string, data []byte, mode fs.FileMode, ours func(old []byte) bool) (changed bool, err error) {
	old, err := ReadConf(path)
	switch {
	case err == nil && bytes.Equal(old, data):
		return false, nil
	case err == nil && !ours(old):
		return false, fmt.Errorf("write %s: %w", path, ErrForeign)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	return true, WriteDurable(path, data, mode)
}

// SyncDir syncs a directory. After that, names that were added or removed survive a power loss.
func SyncDir(dir string) error { return Sync(dir) }

// Sync syncs a file after Write. To write many files and then to sync each takes a quarter of the
// time of WriteSynced for each, because the first sync does most of the work of the others. If the
// power fails in between, a file may be torn.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
