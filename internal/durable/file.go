// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package durable writes and reads state files. A file is written completely or not at all,
// can be locked, and lies in a directory that no other user can change.
//
// The data goes to a file without a name, which then gets its path (O_TMPFILE, Linux 3.11). So a
// killed process leaves no temporary file. Only WriteSynced, WriteDurable and Sync call fsync. They
// serve files that must survive a power loss (docs/adr/0005-no-fsync-on-add.md).
//
// Functions that wait for flock(2) stop waiting when their context ends. They do not use the
// kernel's own wait, because it cannot be interrupted and blocks a thread. A lock ends with
// the process that holds it. So a process that hangs or is stopped keeps its lock.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// suffix is the end of the name of a temporary file. Every process uses the same name for the
// same file. So the next writer overwrites or removes what a killed writer left.
const suffix = "~"

// IsTemp reports whether a directory entry is a temporary file.
func IsTemp(name string) bool { return len(name) > 0 && name[len(name)-1] == suffix[0] }

// Write replaces the file at path with data and sets mode 0600. If path is a symbolic link,
// Write replaces the link and does not follow it. The directory must exist.
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

// WriteLocked works like Write, but also takes an exclusive flock(2) on the file before the
// file gets its name. The lock ends when the caller closes fd.
func WriteLocked(path string, data []byte) (fd int, err error) {
	return place(path, data, how{lock: true})
}

// CreateLocked works like WriteLocked for a new file. If path exists, the error wraps
// fs.ErrExist.
func CreateLocked(path string, data []byte) (fd int, err error) {
	return place(path, data, how{lock: true, create: true})
}

// how says how place writes a file.
type how struct{ lock, create bool }

// place writes the file and returns its descriptor.
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

// fill writes a file that no other process can see yet. So no other process can hold its lock.
// fill ignores an error of flock, because some file systems have no locks.
func fill(fd int, data []byte, lock bool) error {
	if lock {
		_ = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	return writeAll(fd, data)
}

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
func Remove(path string) error {
	return errors.Join(remove(path), remove(path+suffix))
}

// remove deletes a file. If unlink fails, remove checks whether the file exists: on a read-only
// file system, unlink fails even for a missing file.
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

// link gives the nameless file its name. If a file with this name exists, link replaces it with a
// rename.
func link(fd int, path string, create bool) error {
	err := Link(fd, unix.AT_FDCWD, path)
	if create || !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := remove(path + suffix); err != nil {
		return err
	}
	if err := Link(fd, unix.AT_FDCWD, path+suffix); err != nil {
		return err
	}
	return unix.Rename(path+suffix, path)
}

// Link gives a file without a name (O_TMPFILE) a path, relative to an open directory. To link a
// descriptor directly, Linux before 6.10 demands CAP_DAC_READ_SEARCH. To link through /proc, /proc
// must be mounted.
func Link(fd, dir int, path string) error {
	err := unix.Linkat(fd, "", dir, path, unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
		err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), dir, path, unix.AT_SYMLINK_FOLLOW)
	}
	return err
}

// placeNamed does what place does, on file systems without O_TMPFILE (some overlays, NFS).
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

// rename gives the file its final name.
func rename(path string, create bool) error {
	if !create {
		return os.Rename(path+suffix, path)
	}
	if err := os.Link(path+suffix, path); err != nil {
		return err
	}
	return remove(path + suffix)
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

// WriteSynced replaces the file at path with data and waits until the data is on the disk. The
// file gets exactly this mode, whatever the umask is. WriteSynced also syncs the directory if the
// name is new. For an existing name it need not: after a power loss, the path has the old file or
// the new one, and both are complete. Like Write, WriteSynced replaces a symbolic link.
// WriteSynced closes the file before it gives the file its name, so that a program can be
// executed at once.
func WriteSynced(path string, data []byte, mode fs.FileMode) error {
	_, missing := os.Lstat(path)
	if err := replace(path, data, mode); err != nil || missing == nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteDurable works like WriteSynced, but always syncs the directory too. It serves files whose
// old content must not come back after a power loss.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	if err := replace(path, data, mode); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
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

// replace writes a temporary file next to path and renames it. replace overwrites the
// temporary file that a killed writer left.
func replace(path string, data []byte, mode fs.FileMode) error {
	temp := path + suffix
	err := remove(temp)
	if err == nil {
		err = writeNew(temp, data, mode)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, remove(temp)))
	}
	return nil
}

func writeNew(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// ReadConf returns a configuration file that another program wrote. The file must be a regular
// file, or a symbolic link to one, of at most 1 MiB. ReadConf does not wait for pipes and does
// not open devices. If the file is missing, the error wraps fs.ErrNotExist.
func ReadConf(path string) ([]byte, error) {
	if err := regular(path, os.Stat); err != nil { // opening some devices has side effects
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	if err := regular(path, func(string) (fs.FileInfo, error) { return f.Stat() }); err != nil {
		return nil, err
	}
	return readBounded(path, f)
}

// ReadGiven works like ReadConf for a path that the user typed. ReadGiven also reads a pipe or
// a terminal to its end, at most 1 MiB.
func ReadGiven(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	return readBounded(path, f)
}

// ReadInput reads standard input to its end, at most 1 MiB.
func ReadInput(r io.Reader) ([]byte, error) { return readBounded("standard input", r) }

func readBounded(name string, r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err == nil && len(data) > maxSize {
		return nil, fmt.Errorf("%s holds more than 1 MiB, which no configuration does", name)
	}
	return data, err
}

func regular(path string, stat func(string) (fs.FileInfo, error)) error {
	fi, err := stat(path)
	if err != nil || fi.Mode().IsRegular() {
		return err
	}
	if fi.IsDir() {
		return &fs.PathError{Op: "read", Path: path, Err: unix.EISDIR}
	}
	return fmt.Errorf("%s is a device, pipe or socket: want a regular file", path)
}
