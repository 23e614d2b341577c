// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Place is what paths of namespaces are looked up in: a directory or, for those in
// procfs, a PID namespace. The one of a pod, or of a sandboxed unit, has other entries
// than the host's under the same name.
type Place struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// placeOf is the place of a path; nil when it cannot be looked at.
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

// isOf reports whether this is still the place of a path; nil, of an old record, may be.
func (p *Place) isOf(path string) bool {
	now := placeOf(path)
	return p == nil || now != nil && *p == *now
}

// initPIDs is the inode of the PID namespace in which every process is (PROC_PID_INIT_INO).
const initPIDs = 0xEFFFFFFC

// Told is At for who removes what is dead. Without a mark, a namespace is dead only if
// nothing can be hidden: its directory is on the file system of runDir, which this
// process shares with who attaches, or its path names a process and all are seen.
func Told(path string, was *Mark, proc, runDir string) (State, string) {
	state, why := At(path, was, proc)
	if state == Dead && was == nil && !sees(path, runDir) {
		return Unsure, path + " may be hidden from this process, and no record tells what was there"
	}
	return state, why
}

// SeesProcesses reports whether this process sees all of the node's.
func SeesProcesses() bool {
	place := placeOf("/proc/self/ns/net")
	return place != nil && place.Ino == initPIDs
}

func sees(path, runDir string) bool {
	if strings.HasPrefix(path, "/proc/") {
		return SeesProcesses()
	}
	place, run := placeOf(path), placeOf(filepath.Join(runDir, "x"))
	return place != nil && run != nil && run.Dev == place.Dev
}
