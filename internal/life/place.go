// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Place is where paths of namespaces are looked up: a directory or, for paths in procfs, a
// PID namespace. Inside a pod, or a sandboxed unit, the same path can be another place
// than on the host.
type Place struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// placeOf returns the place of a path, or nil when it cannot be read.
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

// isOf reports whether this is still the place of a path. nil, of an old record, matches.
func (p *Place) isOf(path string) bool {
	now := placeOf(path)
	return p == nil || now != nil && *p == *now
}

// initPIDs is the inode of the initial PID namespace, which has every process
// (PROC_PID_INIT_INO).
const initPIDs = 0xEFFFFFFC

// Told is At for callers that remove what is dead. Without a mark, a namespace is dead
// only if nothing can be hidden: its directory is on the file system of runDir, which this
// process shares with the plugins, or its path names a process and this process sees all
// of them.
func Told(path string, was *Mark, proc, runDir string) (State, string) {
	state, why := At(path, was, proc)
	if state == Dead && was == nil && !sees(path, runDir) {
		return Unsure, path + " may be hidden from this process, and no record says what was there"
	}
	return state, why
}

// SeesProcesses reports whether this process sees all processes of the node.
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
