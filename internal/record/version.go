// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"time"

	"golang.org/x/sys/unix"
)

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
