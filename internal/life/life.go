// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package life reports whether the namespace of an attachment is still there: what
// gc, ps and the reclaiming of addresses judge by. There are three answers. What
// is not certain is unsure, and what is unsure is never removed.
package life

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/boot"
	"github.com/patchbay-net/patchbay/netns"
)

// State is what is known of a namespace.
type State int

// The states.
const (
	Unsure State = iota
	Alive
	Dead
)

// String names a state.
func (s State) String() string { return [...]string{"unsure", "alive", "dead"}[s] }

// Mark tells a namespace from another one that comes to its path later. The
// kernel gives an inode's number again at once, and begins anew with each boot,
// so the time it made the inode and the boot are part of it. The time may be that
// of another inode of the same namespace; the cookie decides, where it is known.
type Mark struct {
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
	Since  int64  `json:"since"`            // of the inode, in nanoseconds; nobody can set it
	Cookie uint64 `json:"cookie,omitempty"` // see netns.NS.Cookie
	Boot   string `json:"boot,omitempty"`

	// Place is what the path was looked up in. Who sees another one sees others' paths.
	Place *Place `json:"place,omitempty"`
}

// MarkOf is the mark of what is at path; nil when that is no namespace. bootID
// is empty when it is not known.
func MarkOf(path, bootID string) *Mark {
	m := markOf(path, bootID)
	if m != nil {
		m.Place = placeOf(path)
	}
	return m
}

func markOf(path, bootID string) *Mark {
	var sfs unix.Statfs_t
	var st unix.Stat_t
	if path == "" || unix.Statfs(path, &sfs) != nil || sfs.Type != unix.NSFS_MAGIC || unix.Stat(path, &st) != nil {
		return nil
	}
	return &Mark{Dev: uint64(st.Dev), Ino: st.Ino, Since: st.Ctim.Nano(), Boot: bootID} //nolint:unconvert // Dev is 32 bits wide on some architectures
}

// Same reports whether both are one namespace for certain.
func (m *Mark) Same(o *Mark) bool {
	return m != nil && o != nil && m.Dev == o.Dev && m.Ino == o.Ino && m.Since == o.Since && m.Boot == o.Boot
}

// before reports whether m is for certain of an earlier boot than the one with an id.
func (m *Mark) before(bootID string) bool {
	return m != nil && m.Boot != "" && bootID != "" && m.Boot != bootID
}

// decides compares the cookie of m with that of the namespace open in ns, of the same
// boot. known is false where one of them is not to be had.
func (m *Mark) decides(ns *netns.NS) (same, known bool) {
	if m == nil || m.Cookie == 0 || m.Boot == "" { // each boot begins anew
		return false, false
	}
	cookie, err := ns.Cookie()
	return cookie == m.Cookie, err == nil
}

// decidesAt is decides of the namespace at path, which is none any more once the
// process has ended that had it.
func (m *Mark) decidesAt(path string) (same, known bool) {
	ns, err := netns.Open(path)
	if err != nil {
		return false, netns.Gone(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	return m.decides(ns)
}

// At judges the namespace that an attachment was given at path. was is what stood
// there then; nil when nothing tells. why is for people.
//
// A path that is missing is gone, unless a process is in the namespace. One that
// is no namespace, or whose directory is missing as well, may be a mount that this
// process does not see, which only looks so.
func At(path string, was *Mark, proc string) (state State, why string) {
	if path == "" {
		return Unsure, "nothing tells its namespace"
	}
	now, _ := boot.ID(proc)
	if was.before(now) {
		if was.Same(markOf(path, was.Boot)) { // a boot's id can be hidden by another
			return Alive, "its namespace " + path + " exists"
		}
		return Dead, "its namespace " + path + " is from before the node booted"
	}
	if state, why = look(path, was, proc, now); state == Dead && was != nil && !was.Place.isOf(path) {
		return Unsure, path + " may be hidden: this process does not see the directory, or the processes, that the ADD saw"
	}
	return state, why
}

func look(path string, was *Mark, proc, now string) (state State, why string) {
	ns, err := netns.Open(path)
	switch {
	case errors.Is(err, netns.ErrNotNS):
		return Unsure, path + " is no namespace here; its mount may be hidden from this process"
	case errors.Is(err, fs.ErrNotExist):
		return missing(path, was, proc)
	case err != nil:
		return Unsure, fmt.Sprintf("its namespace cannot be looked at: %v", err)
	}
	defer ns.Close() //nolint:errcheck // read only
	return compare(path, was, markOf(path, now), ns)
}

// missing judges a path at which nothing is.
func missing(path string, was *Mark, proc string) (State, string) {
	dir := filepath.Dir(path)
	if _, err := os.Lstat(dir); err != nil && !strings.HasPrefix(path, "/proc/") {
		return Unsure, dir + " is not here; it may be hidden from this process"
	}
	if state, where := inProcess(was, proc); state != Dead {
		return state, "its namespace is not at " + path + ", but a process has it: " + where
	}
	return Dead, "its namespace " + path + " is gone"
}

// inProcess looks for a process in the namespace that was marked.
func inProcess(was *Mark, proc string) (state State, where string) {
	if was == nil {
		return Dead, ""
	}
	paths, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "ns", "net")) // the pattern is right
	return match(was, paths)
}

// match looks for the namespace that was marked. An inode that a mount or a file holds,
// seen or not, has the time of its mark. One that nothing holds is made by looking at
// it: it may be the marked one, or another that was given its number.
func match(was *Mark, paths []string) (state State, where string) {
	state = Dead
	for _, path := range paths {
		before := coarse()
		is := markOf(path, was.Boot)
		if is == nil || is.Dev != was.Dev || is.Ino != was.Ino {
			continue
		}
		if was.Same(is) {
			return Alive, path
		}
		switch same, known := was.decidesAt(path); {
		case same:
			return Alive, path
		case !known && is.Since >= before:
			state, where = Unsure, path
		}
	}
	return state, where
}

// coarse is the clock that inodes are dated by.
func coarse() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return 0
	}
	return ts.Nano()
}

func compare(path string, was, is *Mark, ns *netns.NS) (State, string) {
	alive := "its namespace " + path + " exists"
	same := was != nil && is != nil && was.Dev == is.Dev && was.Ino == is.Ino
	switch host, err := ns.IsCurrent(); {
	case was.Same(is) || same && host: // the number of our own is not given again
		return Alive, alive
	case err == nil && host:
		return Dead, "its namespace is gone: " + path + " is this process's own"
	case was == nil || is == nil:
		return Alive, alive
	case !same:
		return Dead, "its namespace is gone: another one is at " + path
	}
	switch same, known := was.decides(ns); {
	case same:
		return Alive, alive
	case known:
		return Dead, "its namespace is gone: another one is at " + path
	case strings.HasPrefix(path, "/proc/"):
		return Alive, alive // without a mount the inode is made anew each time it is opened
	}
	return Unsure, "its namespace may be gone: " + path + " was bound again"
}
