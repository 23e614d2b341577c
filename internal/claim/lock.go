// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// A process locks a record with flock(2) while it changes the record's objects. An ADD holds the
// lock from its Write to the end of the session, and a DEL from its ReadLocked. `patchbay repair` and
// `patchbay gc` hold the lock while they work on the record. So repair does not restore objects that a
// DEL is removing, or objects of an ADD that is about to fail. And gc never sees an unfinished ADD of
// the same attachment. The kernel releases the locks of a killed process.

// Patience is how long ADD and DEL wait for another process's lock. Then they continue without
// it: a DEL must work even if an ADD hangs.
const Patience = time.Second

// locks holds the locked files of a Dir by path, the version of each file that the Dir has seen,
// and the directories that Guard has checked.
type locks struct {
	mu       sync.Mutex
	fds      map[string]int // file descriptors
	versions map[string]Version
	checked  []string
}

// Busy reports whether another process has locked the record now.
func (d *Dir) Busy(network string, o owner.Key, plugin string) bool {
	path := d.File(network, o, plugin)
	if d.HasLock(path) {
		return false
	}
	if !d.LockFile(path, 0) {
		return true
	}
	d.UnlockFile(path)
	return false
}

// Unlock releases the lock of a record before the Dir is closed.
func (d *Dir) Unlock(network string, o owner.Key, plugin string) {
	d.UnlockFile(d.File(network, o, plugin))
}

// UnlockAll releases the locks that Seize acquired on all records of an owner. The claim stays: DELs of
// plugins can lock the records, and ADDs still wait.
func (d *Dir) UnlockAll(network string, o owner.Key) {
	for _, path := range d.paths(network, o) {
		d.UnlockFile(path)
	}
}

// Close releases all locks.
func (d *Dir) Close() {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	for _, fd := range d.locks.fds {
		unix.Close(fd) //nolint:errcheck // read only, or written already
	}
	d.locks.fds = nil
}

// LockFile locks a file. If another process has the lock, it returns false. If the file is missing,
// cannot be opened, or is on a file system without locks, it returns true without a lock.
func (d *Dir) LockFile(path string, wait time.Duration) bool {
	ok, _ := d.LockExisting(path, wait)
	return ok
}

// LockExisting works like LockFile, and reports whether the file is missing.
func (d *Dir) LockExisting(path string, wait time.Duration) (ok, missing bool) {
	if d.HasLock(path) {
		return true, false
	}
	fd, locked, err := flock.Try(path, flock.Options{Patience: wait})
	if err == nil && !locked {
		d.keepLock(path, fd)
	}
	return !locked, errors.Is(err, unix.ENOENT)
}

// HasLock reports whether this Dir has locked the file at path.
func (d *Dir) HasLock(path string) bool {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	_, ok := d.locks.fds[path]
	return ok
}

// keepLock stores a lock. It releases the lock of an earlier file at the same path.
func (d *Dir) keepLock(path string, fd int) {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	if old, ok := d.locks.fds[path]; ok {
		unix.Close(old) //nolint:errcheck // read only, or written already
	}
	if d.locks.fds == nil {
		d.locks.fds = make(map[string]int)
	}
	d.locks.fds[path] = fd
	d.note(path, versionOf(fd))
}

// UnlockFile releases the lock of a file.
func (d *Dir) UnlockFile(path string) {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	if fd, ok := d.locks.fds[path]; ok {
		unix.Close(fd) //nolint:errcheck // read only, or written already
		delete(d.locks.fds, path)
	}
}

// Collecting keeps repair out while a GC works, until done is called. Repairing keeps GCs out.
// One lock protects all records, because a GC removes thousands of them at once. If the
// directory of records does not exist, there is nothing to lock.
func (d *Dir) Collecting(ctx context.Context) (done func(), err error) {
	return d.lockAll(ctx, durable.LockSharedLimited)
}

// TryCollecting is Collecting for a caller that can try again later. If repair works now, ok is false.
func (d *Dir) TryCollecting() (done func(), ok bool, err error) {
	var locked bool
	done, err = d.lockAll(context.Background(), func(_ context.Context, fd int) (err error) {
		locked, err = flock.TryOn(fd, true)
		return err
	})
	if locked {
		done()
		return nil, false, nil
	}
	return done, err == nil, err
}

// Repairing keeps GCs out while repair works, until done is called.
func (d *Dir) Repairing(ctx context.Context) (done func(), err error) {
	return d.lockAll(ctx, durable.LockExclusiveLimited)
}

func (d *Dir) lockAll(ctx context.Context, lock func(context.Context, int) error) (done func(), err error) {
	if err := d.Guard(Attachments); err != nil {
		return nil, fmt.Errorf("lock records: %w", err)
	}
	dir := filepath.Join(d.Path, Attachments)
	f, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock records: %w", err)
	}
	if err := lock(ctx, int(f.Fd())); err != nil {
		return nil, errors.Join(fmt.Errorf("lock records %s: %w", dir, err), f.Close())
	}
	return func() { f.Close() }, nil //nolint:errcheck // read only
}

// Version distinguishes files that were at the same path one after the other. The zero value means
// that there is no file. Some file systems use an inode's number again at once, so Version includes
// the modification time.
type Version struct {
	dev, ino uint64
	mtime    int64
}

func versionIn(st *unix.Stat_t) Version {
	return Version{uint64(st.Dev), st.Ino, st.Mtim.Nano()} //nolint:unconvert // Dev is 32 bits wide on some architectures
}

// Exists reports whether a plugin has a record, readable or not.
func (d *Dir) Exists(network string, o owner.Key, plugin string) bool {
	return VersionAt(d.File(network, o, plugin)) != Version{}
}

// VersionAt returns the version of the file at path, or the zero value if stat(2) fails.
func VersionAt(path string) Version {
	v, _ := StatVersion(path)
	return v
}

// StatVersion works like VersionAt, and returns the error of stat(2) if there is no version.
func StatVersion(path string) (Version, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Version{}, err
	}
	return versionIn(&st), nil
}

func versionOf(fd int) Version {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return Version{}
	}
	return versionIn(&st)
}

// SetSeenVersion stores which version of the file at path this Dir has seen.
func (d *Dir) SetSeenVersion(path string, v Version) {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	d.note(path, v)
}

// note works like SetSeenVersion for a caller that has locked the mutex.
func (d *Dir) note(path string, v Version) {
	if d.locks.versions == nil {
		d.locks.versions = make(map[string]Version)
	}
	d.locks.versions[path] = v
}

// SeenVersion returns the version of the file at path that this Dir has seen, if any.
func (d *Dir) SeenVersion(path string) (v Version, ok bool) {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	v, ok = d.locks.versions[path]
	return v, ok
}

// Since returns the time at which a record was written, or the zero time if the record no
// longer exists.
func (d *Dir) Since(network string, o owner.Key, plugin string) time.Time {
	v := VersionAt(d.File(network, o, plugin))
	if v == (Version{}) {
		return time.Time{}
	}
	return time.Unix(0, v.mtime)
}

func (d *Dir) checked(path string) bool {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	return slices.Contains(d.locks.checked, path)
}

func (d *Dir) check(path string) {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	d.locks.checked = append(d.locks.checked, path)
}
