// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/flock"
)

const (
	lockName     = "lock"
	cursorPrefix = "last_reserved_ip."
	tempPrefix   = ".patchbay-" // only on file systems without O_TMPFILE
	maxContent   = 4096         // bytes that we read of a file; our own files have under 300
)

// dir is the open state directory of a network. Every name is resolved relative to its
// descriptor. Symbolic links below dataDir are not followed.
type dir struct {
	fd   int
	path string
	real string // cache of realPath
}

// openDir opens dataDir/network. If create is set, it makes a missing directory. Otherwise the
// error for a missing directory wraps fs.ErrNotExist.
func openDir(dataDir, network string, create bool) (*dir, error) {
	if err := checkName(network); err != nil {
		return nil, err
	}
	if create {
		if err := os.MkdirAll(dataDir, 0o755); err != nil {
			return nil, fmt.Errorf("make state directory: %w", err)
		}
	}
	parent, err := openat(unix.AT_FDCWD, dataDir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open state directory", Path: dataDir, Err: err}
	}
	defer closeFD(parent)
	path := filepath.Join(dataDir, network)
	fd, err := openat(parent, network, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if create && errors.Is(err, unix.ENOENT) {
		if err = unix.Mkdirat(parent, network, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
			fd, err = openat(parent, network, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open state directory", Path: path, Err: err}
	}
	return &dir{fd: fd, path: path}, nil
}

// checkName refuses a network name that is not a plain file name.
func checkName(network string) error {
	if network == "" || network == "." || network == ".." || len(network) > 255 || strings.ContainsAny(network, "/\x00") {
		return fmt.Errorf("network name %q cannot name a directory", network)
	}
	return nil
}

// openat is openat(2) with close-on-exec. openat repeats an interrupted call.
func openat(at int, name string, flags int, perm uint32) (int, error) {
	for {
		fd, err := unix.Openat(at, name, flags|unix.O_CLOEXEC, perm)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// closeFD closes a descriptor. closeFD ignores the error, because every write was checked
// already.
func closeFD(fd int) { _ = unix.Close(fd) }

func (d *dir) close() { closeFD(d.fd) }

// realPath returns the kernel's path of the directory. So two paths to one directory share an index.
func (d *dir) realPath() string {
	if d.real != "" {
		return d.real
	}
	var err error
	if d.real, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(d.fd)); err != nil {
		d.real, _ = filepath.Abs(d.path)
	}
	return d.real
}

func (d *dir) pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: filepath.Join(d.path, name), Err: err}
}

// file is what read found under a name.
type file struct {
	data  []byte
	since time.Time // mtime of the file
	boot  uint64    // Boot.mark of the boot in which the file was written; 0 if the file does not tell
	plain bool      // a regular file of at most maxContent bytes; otherwise data is empty
}

// read reads a file. If the name is a symbolic link, a pipe or a directory, the returned file is
// not plain. If the name does not exist, the error wraps fs.ErrNotExist.
func (d *dir) read(name string) (file, error) {
	fd, err := openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return file{}, nil
	}
	if err != nil {
		return file{}, d.pathError("open", name, err)
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return file{}, d.pathError("stat", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxContent {
		return file{}, nil
	}
	buf := make([]byte, st.Size)
	n, err := unix.Pread(fd, buf, 0)
	if err != nil {
		return file{}, d.pathError("read", name, err)
	}
	return file{data: buf[:n], since: time.Unix(st.Mtim.Unix()), boot: readBoot(fd), plain: true}, nil
}

// errTorn is the warning about a file without content.
var errTorn = errors.New("empty or torn file after a crash; its address counts as free")

// torn reports whether a crash left f incomplete. Such a file is empty, or blank, or full of
// zeros where the file system never wrote the data. Its address counts as free.
func (f *file) torn() bool {
	return f.plain && (bytes.IndexByte(f.data, 0) >= 0 || len(bytes.TrimSpace(f.data)) == 0)
}

// names returns the names of all files in the directory.
func (d *dir) names() ([]string, error) {
	fd, err := openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, d.pathError("open", "", err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close() //nolint:errcheck // read only
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	return names, nil
}

// link creates a file with its content and the id of this boot in one step, so the file is never
// incomplete. link returns the file's mtime. If the name exists, the error wraps fs.ErrExist.
// On file systems without O_TMPFILE, a crash may leave a file whose name starts with tempPrefix;
// the next scan removes that file.
func (d *dir) link(name string, content []byte, boot string) (since int64, err error) {
	err = durable.Put(name, content, durable.How{
		New: true, Dir: d.fd, Temp: tempPrefix + strconv.FormatUint(rand.Uint64(), 36),
		Before: func(fd int) error {
			_ = writeBoot(fd, boot) // without it, only the file's time tells the boot
			var st unix.Stat_t
			err := unix.Fstat(fd, &st)
			since = st.Mtim.Nano()
			return err
		},
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.path, err)
	}
	return since, nil
}

// unlink removes a file. unlink accepts that the file is missing.
func (d *dir) unlink(name string) error {
	err := unix.Unlinkat(d.fd, name, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return d.pathError("remove", name, err)
	}
	return nil
}

// overwrite replaces the content of a small file in place. A crash during the write may leave an
// old address in the file, or no address at all. Both are harmless, because the file is only a
// hint. (The reference truncates the file first, which makes ext4 flush it to disk.)
func (d *dir) overwrite(name string, content []byte) error {
	fd, err := openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return d.pathError("open", name, err)
	}
	defer closeFD(fd)
	if _, err := unix.Pwrite(fd, content, 0); err != nil {
		return d.pathError("write", name, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Size > int64(len(content)) {
		err = unix.Ftruncate(fd, int64(len(content)))
	}
	if err != nil {
		return d.pathError("truncate", name, err)
	}
	return nil
}

// touch makes a file one of this boot, written now.
func (d *dir) touch(name, boot string) error {
	fd, err := openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == nil {
		err = writeBoot(fd, boot)
		closeFD(fd)
	}
	if err != nil {
		return d.pathError("renew", name, err)
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}
	if err := unix.UtimesNanoAt(d.fd, name, now, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return d.pathError("touch", name, err)
	}
	return nil
}

// version identifies a state of the directory. Each file that a process adds or removes changes
// the version.
type version struct{ dev, ino, mtime, ctime uint64 }

func (d *dir) version() (version, error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return version{}, d.pathError("stat", "", err)
	}
	return version{uint64(st.Dev), st.Ino, uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano())}, nil
}

// stamp sets the directory's mtime ten seconds into the past. So any later change gives the
// directory another mtime, even within the same clock tick. The package comment explains the
// danger.
func (d *dir) stamp() error {
	past := unix.NsecToTimespec(time.Now().Add(-10 * time.Second).UnixNano())
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, past}
	if err := unix.UtimesNanoAt(d.fd, ".", ts, 0); err != nil {
		return d.pathError("stamp", "", err)
	}
	return nil
}

// lock takes the flock(2) on the file "lock", as the reference does. lock returns the file's
// descriptor; closing it releases the lock. If shared is set, lock does not create the file, and
// readers do not exclude each other. If shared is set and the file does not exist, fd is -1.
func (d *dir) lock(ctx context.Context, shared bool) (fd int, err error) {
	o := flock.Options{Shared: shared, Dir: d.fd}
	if !shared {
		o.Create = 0o750
	}
	fd, err = durable.LockAt(ctx, lockName, o)
	switch {
	case shared && errors.Is(err, unix.ENOENT):
		return -1, nil
	case errors.Is(err, unix.ENOENT): // the directory itself was removed
		err = unix.ESTALE
	}
	if err != nil {
		return -1, d.pathError("lock", lockName, err)
	}
	return fd, nil
}
