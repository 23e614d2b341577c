// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

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
	"github.com/patchbay-net/patchbay/owner"
)

// A process locks a record with flock(2) while it changes the record's objects. An ADD holds the
// lock from its Write to the end of the session, and a DEL from its Take. `patchbay repair` and
// `patchbay gc` hold the lock while they work on the record. So repair does not restore what a
// DEL is removing, or what an ADD made that is about to fail. And gc never sees an unfinished ADD
// of the same attachment. The kernel releases the locks of a killed process.

// patience is how long ADD and DEL wait for another process's lock. Then they continue without
// it: a DEL must work even if an ADD hangs.
const patience = time.Second

// locks holds the locked files of a Dir by path, the version of each file that the Store has seen,
// and the directories that guard has checked.
type locks struct {
	mu      sync.Mutex
	held    map[string]int // file descriptors
	stood   map[string]version
	checked []string
}

// Take works like Read for a caller that will remove what the record lists. It first locks the
// record. The lock ends when the Dir is closed or the record is removed. If another process holds
// the lock for more than a second, Take continues without it.
func (d *Dir) Take(network string, o owner.Key, plugin string) (*Record, error) {
	if d.guard(attachments, network) != nil {
		return d.Read(network, o, plugin)
	}
	r, _, err := d.take(d.path(network, o, plugin), patience)
	return r, err
}

// TakeAll works like Take for all records of an owner, of any plugin and network. TakeAll
// skips records that cannot be read.
func (d *Dir) TakeAll(o owner.Key) (list []*Record) {
	if !o.Valid() {
		return nil
	}
	paths, _ := filepath.Glob(d.path("*", o, "*")) // cannot fail: o is valid
	for _, path := range paths {
		if durable.IsTemp(path) {
			continue
		}
		network, plugin := filepath.Base(filepath.Dir(path)), filepath.Base(path)[owner.Len+1:]
		if r, err := d.Take(network, o, plugin); r != nil && err == nil {
			list = append(list, r)
		}
	}
	return list
}

// take locks and reads a record. If there is no record at first but one appears later, take locks
// again, because the record belongs to a running ADD.
func (d *Dir) take(path string, wait time.Duration) (r *Record, ok bool, err error) {
	ok, missing := d.lockThere(path, wait)
	if missing {
		d.know(path, version{})
		return nil, true, nil
	}
	r, err = d.readKnown(path)
	if ok && !d.holds(path) && (r != nil || err != nil) {
		ok = d.lock(path, wait)
		r, err = d.readKnown(path)
	}
	return r, ok, err
}

// TryTake works like Take for a caller that can try again later. If another process still has the
// lock after wait, ok is false.
func (d *Dir) TryTake(network string, o owner.Key, plugin string, wait time.Duration) (r *Record, ok bool, err error) {
	if err := d.guard(attachments, network); err != nil {
		return nil, true, fmt.Errorf("read record: %w: %w", ErrBroken, err)
	}
	if r, ok, err = d.take(d.path(network, o, plugin), wait); !ok {
		return nil, false, nil
	}
	return r, true, err
}

// Busy reports whether another process has locked the record now.
func (d *Dir) Busy(network string, o owner.Key, plugin string) bool {
	path := d.path(network, o, plugin)
	if d.holds(path) {
		return false
	}
	if !d.lock(path, 0) {
		return true
	}
	d.unlock(path)
	return false
}

// Unlock releases the lock of a record before the Dir is closed.
func (d *Dir) Unlock(network string, o owner.Key, plugin string) {
	d.unlock(d.path(network, o, plugin))
}

// UnlockAll releases the locks of all records of an owner, as Seize has taken them. A claim stays: DELs of
// plugins take the locks, and ADDs still wait.
func (d *Dir) UnlockAll(network string, o owner.Key) {
	paths, _ := filepath.Glob(d.path(network, o, "*")) // cannot fail: Seize has validated the names
	for _, path := range paths {
		if !durable.IsTemp(path) {
			d.unlock(path)
		}
	}
}

// Close releases all locks.
func (d *Dir) Close() {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	for _, fd := range d.locks.held {
		unix.Close(fd) //nolint:errcheck // read only, or written already
	}
	d.locks.held = nil
}

// lock locks a file. If another process has the lock, it returns false. If the file is missing,
// cannot be opened, or is on a file system without locks, it returns true without a lock.
func (d *Dir) lock(path string, wait time.Duration) bool {
	ok, _ := d.lockThere(path, wait)
	return ok
}

// lockThere works like lock, and reports whether the file is missing.
func (d *Dir) lockThere(path string, wait time.Duration) (ok, missing bool) {
	if d.holds(path) {
		return true, false
	}
	fd, held, err := flock.Try(path, flock.Options{Patience: wait})
	if err == nil && !held {
		d.keep(path, fd)
	}
	return !held, errors.Is(err, unix.ENOENT)
}

func (d *Dir) holds(path string) bool {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	_, ok := d.locks.held[path]
	return ok
}

// keep stores a lock. keep releases the lock of an earlier file at the same path.
func (d *Dir) keep(path string, fd int) {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	if old, ok := d.locks.held[path]; ok {
		unix.Close(old) //nolint:errcheck // read only, or written already
	}
	if d.locks.held == nil {
		d.locks.held = make(map[string]int)
	}
	d.locks.held[path] = fd
	d.note(path, versionOf(fd))
}

func (d *Dir) unlock(path string) {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	if fd, ok := d.locks.held[path]; ok {
		unix.Close(fd) //nolint:errcheck // read only, or written already
		delete(d.locks.held, path)
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
	var held bool
	done, err = d.lockAll(context.Background(), func(_ context.Context, fd int) (err error) {
		held, err = flock.TryOn(fd, true)
		return err
	})
	if held {
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
	if err := d.guard(attachments); err != nil {
		return nil, fmt.Errorf("lock records: %w", err)
	}
	dir := filepath.Join(d.Path, attachments)
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

// version distinguishes files that were at the same path one after the other. The zero value means
// that there is no file. Some file systems use an inode's number again at once, so version includes
// the modification time.
type version struct {
	dev, ino uint64
	mtime    int64
}

func versionIn(st *unix.Stat_t) version {
	return version{uint64(st.Dev), st.Ino, st.Mtim.Nano()} //nolint:unconvert // Dev is 32 bits wide on some architectures
}

func versionAt(path string) version {
	v, _ := lookAt(path)
	return v
}

func lookAt(path string) (version, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return version{}, err
	}
	return versionIn(&st), nil
}

func versionOf(fd int) version {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return version{}
	}
	return versionIn(&st)
}

// know stores which version of the file at path this Dir has seen.
func (d *Dir) know(path string, v version) {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	d.note(path, v)
}

// note works like know for a caller that holds the mutex.
func (d *Dir) note(path string, v version) {
	if d.locks.stood == nil {
		d.locks.stood = make(map[string]version)
	}
	d.locks.stood[path] = v
}

// known returns the version of the file at path that this Dir has seen, if any.
func (d *Dir) known(path string) (v version, ok bool) {
	d.locks.mu.Lock()
	defer d.locks.mu.Unlock()
	v, ok = d.locks.stood[path]
	return v, ok
}

// Since returns the time at which a record was written, or the zero time if the record no
// longer exists.
func (d *Dir) Since(r *Record) time.Time {
	v := versionAt(d.path(r.Network, r.Owner, r.Plugin))
	if v == (version{}) {
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
