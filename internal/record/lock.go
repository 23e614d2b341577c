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

// A record is locked with flock(2) by the process that changes its objects: an ADD from
// its Write and a DEL from its Take until their session ends, `patchbay repair` and
// `patchbay gc` while they work on it. So repair restores nothing that a DEL is removing
// or that a failing ADD will not own, and gc never meets an unfinished ADD of the same
// attachment. The kernel drops the locks of a process that is killed.

// patience is how long ADD and DEL wait for another process's lock. A DEL must work beside
// an ADD that hangs, so it goes on without the lock.
const patience = time.Second

// lockStep is the pause between two attempts: a blocking flock has no timeout.
const lockStep = time.Millisecond

// locks are the locked files of a Store, by path, and the version that it knows of each
// file.
type locks struct {
	mu    sync.Mutex
	held  map[string]int // file descriptors
	stood map[string]version
}

// Take is Read for a caller that will remove what the record lists: it locks the record
// first, until the Store is closed or the record removed. When another process keeps the
// lock longer than a second, Take goes on without.
func (s *Store) Take(network string, o owner.Key, plugin string) (*Record, error) {
	if s.guard(attachments, network) != nil {
		return s.Read(network, o, plugin)
	}
	r, _, err := s.take(s.path(network, o, plugin), patience)
	return r, err
}

// TakeAll is Take for all records of an owner, of any plugin and network. It skips records
// that cannot be read.
func (s *Store) TakeAll(o owner.Key) (list []*Record) {
	if !o.Valid() {
		return nil
	}
	paths, _ := filepath.Glob(s.path("*", o, "*")) // of a valid name
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

// take locks again when the record appears after an attempt that found nothing to lock: it
// belongs to an ADD in progress.
func (s *Store) take(path string, wait time.Duration) (r *Record, ok bool, err error) {
	ok = s.lock(path, wait)
	r, err = s.readKnown(path)
	if ok && !s.holds(path) && (r != nil || err != nil) {
		ok = s.lock(path, wait)
		r, err = s.readKnown(path)
	}
	return r, ok, err
}

// TryTake is Take for a caller that can retry later: ok is false when another process
// still has the lock after wait.
func (s *Store) TryTake(network string, o owner.Key, plugin string, wait time.Duration) (r *Record, ok bool, err error) {
	if err := s.guard(attachments, network); err != nil {
		return nil, true, fmt.Errorf("read record: %w: %w", ErrBroken, err)
	}
	if r, ok, err = s.take(s.path(network, o, plugin), wait); !ok {
		return nil, false, nil
	}
	return r, true, err
}

// Busy reports whether another process has the record locked now.
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

// lock returns false when another process has the lock. A file that is missing, cannot be
// opened or is on a file system without locks needs no lock.
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

// keep notes a lock, and releases that of an earlier file at the path.
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

// Collecting keeps repair out while a GC works, until done is called; Repairing keeps GCs
// out. One lock for all is enough, since a GC removes thousands of records in one go.
// Without a directory of records there is nothing to lock.
func (s *Store) Collecting(ctx context.Context) (done func(), err error) {
	return s.lockAll(ctx, durable.LockShared)
}

// Repairing is the counterpart of Collecting.
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

// version distinguishes successive files at one path. The zero value is no file. The
// modification time is for file systems that reuse an inode's number at once.
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

// know notes the version of the file that this Store has seen at path.
func (s *Store) know(path string, v version) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	s.note(path, v)
}

// note is know for a caller that holds the mutex.
func (s *Store) note(path string, v version) {
	if s.locks.stood == nil {
		s.locks.stood = make(map[string]version)
	}
	s.locks.stood[path] = v
}

// known returns the version of the file that this Store has seen at path, if any.
func (s *Store) known(path string) (v version, ok bool) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	v, ok = s.locks.stood[path]
	return v, ok
}

// Since is when a record was written; zero when it is gone.
func (s *Store) Since(r *Record) time.Time {
	v := versionAt(s.path(r.Network, r.Owner, r.Plugin))
	if v == (version{}) {
		return time.Time{}
	}
	return time.Unix(0, v.mtime)
}
