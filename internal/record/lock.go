// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/owner"
)

// A process locks a record with flock(2) while it changes the record's objects. An ADD holds
// the lock from its Write, and a DEL from its Take, until the end of the session. `patchbay
// repair` and `patchbay gc` hold it while they work on the record. So repair does not restore
// what a DEL is removing or what a failing ADD will not own. And gc never sees an unfinished
// ADD of the same attachment. The kernel releases the locks of a killed process.

// patience is how long ADD and DEL wait for another process's lock. Then they continue without
// the lock, because a DEL must work even if an ADD hangs.
const patience = time.Second

// lockStep is the pause between two attempts. A blocking flock has no timeout, so it is not
// used.
const lockStep = time.Millisecond

// locks holds the locked files of a Store by path, and the version of each file that the Store
// has seen.
type locks struct {
	mu    sync.Mutex
	held  map[string]int // file descriptors
	stood map[string]version
}

// Take works like Read for a caller that will remove what the record lists. It first locks the
// record. The lock ends when the Store is closed or the record is removed. If another process
// holds the lock for more than a second, Take continues without it.
func (s *Store) Take(network string, o owner.Key, plugin string) (*Record, error) {
	if s.guard(attachments, network) != nil {
		return s.Read(network, o, plugin)
	}
	r, _, err := s.take(s.path(network, o, plugin), patience)
	return r, err
}

// TakeAll works like Take for all records of an owner, of any plugin and network. It skips
// records that cannot be read.
func (s *Store) TakeAll(o owner.Key) (list []*Record) {
	if !o.Valid() {
		return nil
	}
	paths, _ := filepath.Glob(s.path("*", o, "*")) // cannot fail: o is valid
	for _, path := range paths {
		if durable.IsTemp(path) {
			continue
		}
		network, plugin := filepath.Base(filepath.Dir(path)), filepath.Base(path)[owner.Len+1:]
		if r, err := s.Take(network, o, plugin); r != nil && err == nil {
			list = append(list, r)
		}
	}
	return list
}

// take locks and reads a record. If the record did not exist at the first attempt but appears
// later, take locks again, because the record belongs to a running ADD.
func (s *Store) take(path string, wait time.Duration) (r *Record, ok bool, err error) {
	ok = s.lock(path, wait)
	r, err = s.readKnown(path)
	if ok && !s.holds(path) && (r != nil || err != nil) {
		ok = s.lock(path, wait)
		r, err = s.readKnown(path)
	}
	return r, ok, err
}

// TryTake works like Take for a caller that can try again later. ok is false if another
// process still has the lock after wait.
func (s *Store) TryTake(network string, o owner.Key, plugin string, wait time.Duration) (r *Record, ok bool, err error) {
	if err := s.guard(attachments, network); err != nil {
		return nil, true, fmt.Errorf("read record: %w: %w", ErrBroken, err)
	}
	if r, ok, err = s.take(s.path(network, o, plugin), wait); !ok {
		return nil, false, nil
	}
	return r, true, err
}

// Busy reports whether another process has locked the record now.
func (s *Store) Busy(network string, o owner.Key, plugin string) bool {
	path := s.path(network, o, plugin)
	if s.holds(path) {
		return false
	}
	if !s.lock(path, 0) {
		return true
	}
	s.unlock(path)
	return false
}

// Unlock releases the lock of a record before the Store is closed.
func (s *Store) Unlock(network string, o owner.Key, plugin string) {
	s.unlock(s.path(network, o, plugin))
}

// Close releases all locks.
func (s *Store) Close() {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	for _, fd := range s.locks.held {
		unix.Close(fd) //nolint:errcheck // read only, or written already
	}
	s.locks.held = nil
}

// lock locks a file and returns false if another process has the lock. It returns true without
// a lock if the file is missing, cannot be opened, or is on a file system without locks.
func (s *Store) lock(path string, wait time.Duration) bool {
	if s.holds(path) {
		return true
	}
	for end := time.Now().Add(wait); ; {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return true
		}
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isAt(fd, path) {
			s.keep(path, fd)
			return true
		}
		unix.Close(fd) //nolint:errcheck // read only
		switch {
		case err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return true
		case err != nil && !time.Now().Before(end):
			return false
		case err != nil:
			<-time.After(lockStep)
		}
	}
}

// isAt reports whether an open file is still the one at path.
func isAt(fd int, path string) bool {
	var open, there unix.Stat_t
	if unix.Fstat(fd, &open) != nil || unix.Lstat(path, &there) != nil {
		return false
	}
	return open.Dev == there.Dev && open.Ino == there.Ino
}

func (s *Store) holds(path string) bool {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	_, ok := s.locks.held[path]
	return ok
}

// keep stores a lock. It releases the lock of an earlier file at the same path.
func (s *Store) keep(path string, fd int) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	if old, ok := s.locks.held[path]; ok {
		unix.Close(old) //nolint:errcheck // read only, or written already
	}
	if s.locks.held == nil {
		s.locks.held = make(map[string]int)
	}
	s.locks.held[path] = fd
	s.note(path, versionOf(fd))
}

func (s *Store) unlock(path string) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	if fd, ok := s.locks.held[path]; ok {
		unix.Close(fd) //nolint:errcheck // read only, or written already
		delete(s.locks.held, path)
	}
}

// Collecting keeps repair out while a GC works, until done is called. Repairing keeps GCs out.
// One lock protects all records, because a GC removes thousands of them at once. If the
// directory of records does not exist, there is nothing to lock.
func (s *Store) Collecting(ctx context.Context) (done func(), err error) {
	return s.lockAll(ctx, durable.LockShared)
}

// Repairing keeps GCs out while repair works, until done is called.
func (s *Store) Repairing(ctx context.Context) (done func(), err error) {
	return s.lockAll(ctx, durable.LockExclusive)
}

func (s *Store) lockAll(ctx context.Context, lock func(context.Context, int) error) (done func(), err error) {
	if err := s.guard(attachments); err != nil {
		return nil, fmt.Errorf("lock records: %w", err)
	}
	dir := filepath.Join(s.Dir, attachments)
	f, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock records: %w", err)
	}
	ctx, cancel := durable.WithLockLimit(ctx)
	defer cancel()
	if err := lock(ctx, int(f.Fd())); err != nil {
		return nil, errors.Join(fmt.Errorf("lock records %s: %w", dir, err), f.Close())
	}
	return func() { f.Close() }, nil //nolint:errcheck // read only
}

// version distinguishes files that were at a path one after the other. The zero value means
// that there is no file. It includes the modification time, because some file systems use an
// inode's number again at once.
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

// know stores which version of the file at path this Store has seen.
func (s *Store) know(path string, v version) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	s.note(path, v)
}

// note works like know for a caller that holds the mutex.
func (s *Store) note(path string, v version) {
	if s.locks.stood == nil {
		s.locks.stood = make(map[string]version)
	}
	s.locks.stood[path] = v
}

// known returns the version of the file at path that this Store has seen, if any.
func (s *Store) known(path string) (v version, ok bool) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	v, ok = s.locks.stood[path]
	return v, ok
}

// Since returns the time at which a record was written, or the zero time if the record no
// longer exists.
func (s *Store) Since(r *Record) time.Time {
	v := versionAt(s.path(r.Network, r.Owner, r.Plugin))
	if v == (version{}) {
		return time.Time{}
	}
	return time.Unix(0, v.mtime)
}
