// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package life decides whether the namespace of an attachment still exists. The answer is alive,
// dead or unsure. If the answer is unsure, callers remove nothing. gc, ps and host-local use this
// package.
package life

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/netns"
)

// State says what is known about a namespace.
type State int

// These are the possible states of a namespace.
const (
	Unsure State = iota
	Alive
	Dead
)

// String names a state.
func (s State) String() string { return [...]string{"unsure", "alive", "dead"}[s] }

// Judge judges namespaces. A caller that removes or reports what is dead asks At; a caller that works only with what is at a path asks
// AtPath. Before a Judge calls the first namespace dead or forgotten, it looks once at the processes of the node.
type Judge struct {
	Proc, Run  string
	Containerd []string // directories of containerd's state; see Forgotten

	// Quiet is spaces.Quiet, which needs netlink: the SDK and chain link this package, and no netlink. Without it,
	// no sandbox is forgotten.
	Quiet func(ns *netns.NS, proc, allowed string) bool

	users *users
}

// At decides whether the namespace that an attachment got at path still exists. was is the mark from that time, or nil.
// why is the reason for the answer, for messages. If a process or a mount has the namespace, it exists, also if its path
// does not. Without a mark only the path can show death, so this process must certainly see the place of the path. It does
// so if the directory is on the file system of Run, which this process shares with the plugins, or if the path names a
// process and this process sees all of them.
func (j *Judge) At(path string, was *Mark) (State, string) {
	switch state, why := j.AtPath(path, was); {
	case state != Dead:
		return state, why
	case was != nil:
		return j.findUsers().doubt(was, why)
	case !sees(path, j.Run):
		return Unsure, path + " may be hidden from this process, and no record says what was there"
	default:
		return state, why
	}
}

// AtPath works like At for a caller to whom a namespace is dead that is not at its path any more, although an open file or
// another mount may keep it: an ADD of the same attachment, of which the runtime says that the container is new, and
// whatever opens the path next.
//
// If the path is missing and no process is in the namespace, the namespace is gone. If the path
// is not a namespace, or if its directory is missing too, the answer is unsure: the mount may
// exist in another mount namespace.
func (j *Judge) AtPath(path string, was *Mark) (state State, why string) {
	if path == "" {
		return Unsure, "its namespace is unknown"
	}
	now, _ := clock.BootID(j.Proc)
	if was.before(now) {
		if was.Same(markOf(path, was.Boot)) { // the boot id can be hidden by another mount
			return Alive, "its namespace " + path + " exists"
		}
		return Dead, "its namespace " + path + " is from before the node booted"
	}
	if state, why = stateAt(path, was, j.Proc, now); state == Dead && was != nil && !was.Place.isOf(path) {
		return Unsure, path + " may be hidden: this process does not see the directory, or the processes, that the ADD saw"
	}
	return state, why
}

// users knows the network namespaces that processes use. A process uses a namespace with an open
// file, with a thread inside, or with a mount that it sees. Such a namespace exists even if its
// path does not.
type users struct {
	links     map[uint64][]string // paths by inode number
	processes map[uint64]bool     // the inode numbers that a file or a thread of a process has
	boot      string
}

// findUsers reads every process that is visible in proc. It walks through proc itself, because filepath.Glob takes
// more than four times as long.
func findUsers(proc string) users {
	h := users{links: make(map[uint64][]string), processes: make(map[uint64]bool)}
	h.boot, _ = clock.BootID(proc)
	views := make(map[string]bool) // mount namespaces whose mounts are known
	for _, process := range numbered(proc) {
		for _, file := range numbered(process + "/fd") {
			h.linked(file)
		}
		for _, thread := range numbered(process + "/task") {
			h.linked(thread + "/ns/net")
			h.mounted(thread, views)
		}
	}
	return h
}

// numbered returns the paths of a directory's entries whose names begin with a digit. The process of the
// directory may have ended by now.
func numbered(dir string) (paths []string) {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()               //nolint:errcheck // read only
	names, _ := d.Readdirnames(0) // those before an error
	for _, name := range names {
		if name[0] >= '0' && name[0] <= '9' {
			paths = append(paths, dir+"/"+name)
		}
	}
	return paths
}

// linked adds the namespace to which a link in procfs leads, if it leads to one.
func (h users) linked(link string) {
	to, err := os.Readlink(link) // to read the link creates no inode
	if err != nil {
		return
	}
	if inode, ok := inodeOf(to); ok {
		h.links[inode], h.processes[inode] = append(h.links[inode], link), true
	}
	if to != "/" && !strings.Contains(to, "/netns/") {
		return
	}
	if m := markOf(link, ""); m != nil { // opened through a mount, which may be gone
		h.links[m.Ino], h.processes[m.Ino] = append(h.links[m.Ino], link), true
	}
}

// mounted adds the namespaces that are mounted in the mount namespace of a thread.
func (h users) mounted(thread string, views map[string]bool) {
	mounts, _ := os.Readlink(thread + "/ns/mnt")
	root, _ := os.Readlink(thread + "/root") // mountinfo leaves out mounts outside of root
	if views[mounts+root] {
		return
	}
	bound, err := boundAt(thread + "/mountinfo")
	views[mounts+root] = err == nil // otherwise the thread has ended, and another one has the same mounts
	for _, b := range bound {
		h.links[b.inode] = append(h.links[b.inode], filepath.Join(thread, "root", b.path))
	}
}

// doubt checks the answer Dead if only the path led to that answer. why is the reason for it.
// doubt finds neither a namespace that only a socket holds, nor a mount that no process sees.
func (h users) doubt(was *Mark, why string) (State, string) {
	if was == nil || was.before(h.boot) {
		return Dead, why
	}
	state, where := match(was, h.links[was.Ino])
	switch state {
	case Alive:
		return Alive, "its namespace is not at its path, but something holds it: " + where
	case Unsure:
		return Unsure, "its namespace is not at its path, and something may hold it: " + where
	}
	return Dead, why + " (no visible process holds it)"
}

// initPIDs is the inode of the initial PID namespace, which shows all processes
// (PROC_PID_INIT_INO).
const initPIDs = 0xEFFFFFFC

func (j *Judge) findUsers() *users {
	if j.users == nil {
		found := findUsers(j.Proc)
		j.users = &found
	}
	return j.users
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
