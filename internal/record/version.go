// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"time"

	"golang.org/x/sys/unix"
)

// version tells the files apart that stand at one path in turn. The zero value
// is none. The time is there for file systems that give an inode's number again
// at once.
type version struct {
	dev, ino uint64
	mtime    int64
}

func versionIn(st *unix.Stat_t) version {
	return version{uint64(st.Dev), st.Ino, st.Mtim.Nano()} //nolint:unconvert // Dev is 32 bits wide on some architectures
}

func versionAt(path string) version {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return version{}
	}
	return versionIn(&st)
}

func versionOf(fd int) version {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return version{}
	}
	return versionIn(&st)
}

// know notes which file this Store has seen at path.
func (s *Store) know(path string, v version) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	s.note(path, v)
}

// note is know for who has the mutex.
func (s *Store) note(path string, v version) {
	if s.locks.stood == nil {
		s.locks.stood = make(map[string]version)
	}
	s.locks.stood[path] = v
}

// known says which file it was, if it has seen the path.
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
