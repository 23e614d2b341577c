// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/netns"
)

// Mark identifies a namespace. A later namespace at the same path has another mark. An inode
// number is not enough: the kernel uses a number again at once, and each boot starts with the
// same numbers. So the mark includes the inode's time and the boot. The time may come from
// another inode of the same namespace, so the cookie decides if it is known.
type Mark struct {
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
	Since  int64  `json:"since"`            // time of the inode, in nanoseconds; no program can set it
	Cookie uint64 `json:"cookie,omitempty"` // see netns.NS.Cookie
	Boot   string `json:"boot,omitempty"`

	// Place says where the path was looked up. In another place, the same path may lead to
	// another namespace.
	Place *Place `json:"place,omitempty"`
}

// MarkOf returns the mark of the namespace at path. If there is no namespace, MarkOf returns nil.
// If the boot is not known, bootID is empty. cookie reads the namespace's cookie: CookieOf, or a
// cheaper function of a caller that has a socket there.
func MarkOf(path, bootID string, cookie func(path string) uint64) *Mark {
	m := markOf(path, bootID)
	if m != nil {
		m.Place, m.Cookie = placeOf(path), cookie(path)
	}
	return m
}

// CookieOf returns the cookie of the namespace at path. If it cannot read the cookie, it returns 0,
// and comparing marks is less certain.
func CookieOf(path string) (cookie uint64) {
	ns, err := netns.Open(path)
	if err != nil {
		return 0
	}
	defer ns.Close() //nolint:errcheck // read only
	cookie, _ = ns.Cookie()
	return cookie
}

func markOf(path, bootID string) *Mark {
	var sfs unix.Statfs_t
	var st unix.Stat_t
	if path == "" || unix.Statfs(path, &sfs) != nil || sfs.Type != unix.NSFS_MAGIC || unix.Stat(path, &st) != nil {
		return nil
	}
	return &Mark{Dev: uint64(st.Dev), Ino: st.Ino, Since: st.Ctim.Nano(), Boot: bootID} //nolint:unconvert // Dev is 32 bits wide on some architectures
}

// Same reports whether both marks certainly identify the same namespace.
func (m *Mark) Same(o *Mark) bool {
	return m != nil && o != nil && m.Dev == o.Dev && m.Ino == o.Ino && m.Since == o.Since && m.Boot == o.Boot
}

// before reports whether m certainly comes from an earlier boot than bootID.
func (m *Mark) before(bootID string) bool {
	return m != nil && m.Boot != "" && bootID != "" && m.Boot != bootID
}

// inode reports whether both marks have the same inode number. Another namespace may have got it.
func (m *Mark) inode(o *Mark) bool { return m != nil && o != nil && m.Dev == o.Dev && m.Ino == o.Ino }

// decidesAt compares the cookie of m with that of the namespace at path. m must come from the current boot. If one
// of the cookies is missing, known is false. If path no longer exists because its process has ended, the namespaces
// are certainly not the same.
func (m *Mark) decidesAt(path string) (same, known bool) {
	ns, err := netns.Open(path)
	if err != nil {
		return false, netns.Gone(err)
	}
	defer ns.Close()                               //nolint:errcheck // read only
	if m == nil || m.Cookie == 0 || m.Boot == "" { // cookies start again at each boot
		return false, false
	}
	cookie, err := ns.Cookie()
	return cookie == m.Cookie, err == nil
}

// Place identifies where paths of namespaces are looked up: a directory or, for paths in
// procfs, a PID namespace. Inside a pod or a sandboxed unit, a path can lead to another place
// than on the host.
type Place struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// placeOf returns the place of a path, or nil if it cannot be read.
func placeOf(path string) *Place {
	dir := filepath.Dir(path)
	if strings.HasPrefix(path, "/proc/") {
		dir = "/proc/self/ns/pid"
	}
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return nil
	}
	return &Place{uint64(st.Dev), st.Ino} //nolint:unconvert // Dev is 32 bits wide on some architectures
}

// isOf reports whether this process looks the path up in this place: in the same directory or,
// for a path in procfs, the same PID namespace. A nil place, which could not be read, always matches.
func (p *Place) isOf(path string) bool {
	now := placeOf(path)
	return p == nil || now != nil && *p == *now
}

// stateAt compares what is at path now with a mark of this boot.
func stateAt(path string, was *Mark, proc, now string) (State, string) {
	if is := markOf(path, now); is != nil {
		return compare(path, was, is)
	}
	ns, err := netns.Open(path)
	switch {
	case errors.Is(err, netns.ErrNotNS):
		return Unsure, path + " is no namespace here; its mount may be hidden from this process"
	case errors.Is(err, fs.ErrNotExist):
		return missing(path, was, proc)
	case err != nil:
		return Unsure, fmt.Sprintf("its namespace cannot be opened: %v", err)
	}
	ns.Close() //nolint:errcheck // read only
	return Alive, "its namespace " + path + " exists"
}

// missing decides whether a namespace is gone whose path does not exist.
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

// inProcess searches for a process in the marked namespace.
func inProcess(was *Mark, proc string) (state State, where string) {
	if was == nil {
		return Dead, ""
	}
	var paths []string
	for _, process := range numbered(proc) {
		paths = append(paths, process+"/ns/net")
	}
	return match(was, paths)
}

// match searches for the marked namespace among the paths. If a mount or a file holds an inode of
// the namespace, the inode still has the mark's time. If nothing holds an inode, opening the path
// creates a new one. The new inode may belong to the marked namespace, or to another namespace
// that got the same number.
func match(was *Mark, paths []string) (state State, where string) {
	state = Dead
	for _, path := range paths {
		before := coarse()
		is := markOf(path, was.Boot)
		if !was.inode(is) {
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

// coarse returns the time of the clock that dates inodes.
func coarse() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return 0
	}
	return ts.Nano()
}

func compare(path string, was, is *Mark) (State, string) {
	alive, dead := "its namespace "+path+" exists", "its namespace is gone: another one is at "+path
	own := is.inode(markOf("/proc/thread-self/ns/net", is.Boot))
	switch {
	case was.Same(is) || was.inode(is) && own: // this process's own namespace exists, so no other has its inode number
		return Alive, alive
	case own:
		return Dead, "its namespace is gone: " + path + " is this process's own"
	case was == nil:
		return Alive, alive
	case !was.inode(is):
		return Dead, dead
	}
	switch same, known := was.decidesAt(path); {
	case same:
		return Alive, alive
	case known:
		return Dead, dead
	case strings.HasPrefix(path, "/proc/"):
		return Alive, alive // without a mount, each open creates a new inode
	}
	return Unsure, "its namespace may be gone: " + path + " was bound again"
}
