// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/flock"
)

// suffix is the end of the name of a temporary file. Every process uses the same name for the
// same file. So the next writer overwrites or removes what a killed writer left.
const suffix = "~"

// IsTemp reports whether a directory entry is a temporary file.
func IsTemp(name string) bool { return len(name) > 0 && name[len(name)-1] == suffix[0] }

// Write replaces the file at path with data and sets mode 0600. If path is a symbolic link,
// Write replaces the link and does not follow it. The directory must exist.
func Write(path string, data []byte) error { return Put(path, data, How{}) }

// WriteLocked works like Write, but also takes an exclusive flock(2) on the file before the
// file gets its name. The lock ends when the caller closes fd.
func WriteLocked(path string, data []byte) (fd int, err error) {
	return place(path, data, How{lock: true})
}

// CreateLocked works like WriteLocked for a new file. If path exists, the error wraps
// fs.ErrExist.
func CreateLocked(path string, data []byte) (fd int, err error) {
	return place(path, data, How{lock: true, New: true})
}

// WriteSynced replaces the file at path with data and waits until the data is on the disk. The
// file gets exactly this mode, whatever the umask is. WriteSynced also syncs the directory if the
// name is new. For an existing name it need not: after a power loss, the path has the old file or
// the new one, and both are complete. Like Write, WriteSynced replaces a symbolic link.
// WriteSynced closes the file before it gives the file its name, so that a program can be
// executed at once.
func WriteSynced(path string, data []byte, mode fs.FileMode) error {
	missing := unix.Lstat(path, new(unix.Stat_t)) != nil
	if err := Put(path, data, How{synced: true, mode: mode}); err != nil || !missing {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteDurable works like WriteSynced, but always syncs the directory too. It is for files whose
// old content must not come back after a power loss.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	if err := Put(path, data, How{synced: true, mode: mode}); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// How says how Put writes a file.
type How struct {
	New    bool               // a file that exists stays, and the error wraps fs.ErrExist
	Temp   string             // path of the temporary file; by default that of the file with "~"
	Dir    int                // an open directory to which the paths are relative; 0 is none
	Before func(fd int) error // called with the complete file before it gets its name

	lock   bool // take the lock before the file gets its name
	synced bool // to the disk, with exactly this mode, and without a writer once the file has its name
	mode   fs.FileMode
	named  bool // set by tests: as on a file system without O_TMPFILE
}

// Put writes a file completely or not at all. Unless How says otherwise, Put works like Write.
func Put(path string, data []byte, how How) error {
	fd, err := place(path, data, how)
	if err != nil {
		return err
	}
	if err := unix.Close(fd); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// place writes the file and returns its descriptor.
func place(path string, data []byte, how How) (fd int, err error) {
	how.Temp = cmp.Or(how.Temp, path+suffix)
	p := &put{how, path, data}
	if err := again(func() error { fd, err = p.once(); return err }); err != nil {
		return -1, &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return fd, nil
}

// errConcurrent means that another writer of the same file has, or has taken away, the temporary file.
var errConcurrent = errors.New("another process writes it")

// again repeats a write for some time. Two writers of one path share the temporary name, so one may take away the
// other's; the last writer's file stays. A writer that waits may lose to a fast one many times.
func again(write func() error) error {
	start := time.Now()
	for {
		if err := write(); !errors.Is(err, errConcurrent) || time.Since(start) > patience {
			return err
		}
	}
}

// put is one file that is being written.
type put struct {
	How
	path string
	data []byte
}

func (p *put) once() (fd int, err error) {
	if p.synced || p.named {
		return p.underName()
	}
	fd, err = unix.Openat(from(p.Dir), filepath.Dir(p.path), unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return p.underName()
	}
	if err != nil {
		return -1, err
	}
	if err = p.fill(fd); err == nil {
		err = p.link(fd)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// from returns the descriptor that stands for a directory in system calls.
func from(dir int) int { return cmp.Or(dir, unix.AT_FDCWD) }

// fill writes a file that no other process can see yet, or at least uses. So no other process can hold its lock.
// fill ignores an error of flock, because some file systems have no locks.
func (p *put) fill(fd int) error {
	if p.lock {
		_, _ = flock.TryOn(fd, false)
	}
	for data := p.data; len(data) > 0; {
		n, err := unix.Write(fd, data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	if p.synced {
		if err := errors.Join(unix.Fchmod(fd, uint32(p.mode)), unix.Fsync(fd)); err != nil {
			return err
		}
	}
	if p.Before != nil {
		return p.Before(fd)
	}
	return nil
}

// link gives the nameless file its name. If a file with this name exists, link replaces it with a
// rename.
func (p *put) link(fd int) error {
	err := link(fd, from(p.Dir), p.path)
	if p.New || !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := remove(p.Dir, p.Temp); err != nil {
		return err
	}
	if err := link(fd, from(p.Dir), p.Temp); err != nil {
		return asConcurrent(err, unix.EEXIST)
	}
	return p.rename()
}

// link gives a file without a name (O_TMPFILE) a path, relative to an open directory. To link a
// descriptor directly, Linux before 6.10 demands CAP_DAC_READ_SEARCH. To link through /proc, /proc
// must be mounted.
func link(fd, dir int, path string) error {
	err := unix.Linkat(fd, "", dir, path, unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
		err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), dir, path, unix.AT_SYMLINK_FOLLOW)
	}
	return err
}
