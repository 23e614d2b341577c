// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/netns"
)

// Caller identifies a containerd that called an ADD. containerd can forget a sandbox: before 1.6.9
// if it is killed right after the ADD (containerd#7456), and at any time if its database is lost.
// Then it never calls DEL, and the mount keeps the namespace.
type Caller struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`          // when the process started, in clock ticks since the boot
	PIDs  *Place `json:"pids,omitempty"` // its PID namespace
}

// containerd is the name of its process.
const containerd = "containerd"

// ReadCaller returns the process that called the ADD, if it is containerd.
func ReadCaller(proc string, pid int) *Caller {
	name, start, err := process(proc, pid)
	if err != nil || name != containerd {
		return nil
	}
	return &Caller{PID: pid, Start: start, PIDs: placeOf("/proc/self/ns/net")}
}

// RuntimeName returns the name of a runtime's process, such as "crio" or "podman", or "" if it cannot be read.
func RuntimeName(proc string, pid int) string {
	name, _, err := process(proc, pid)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(name, "")
}

// process reads the name of a process, and when it started. If there is no such process, the error
// wraps fs.ErrNotExist or is ESRCH.
func process(proc string, pid int) (name string, start uint64, err error) {
	stat, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, err
	}
	_, after, _ := bytes.Cut(stat, []byte("("))
	end := bytes.LastIndexByte(after, ')')
	fields := strings.Fields(string(after[end+1:])) // from the third field of proc_pid_stat(5)
	if end < 0 || len(fields) < 20 {
		return "", 0, fmt.Errorf("process %d: stat is %q", pid, stat)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return string(after[:end]), start, err
}

// ended reports whether the process certainly ended. Only a process of the same PID namespace can
// see that, and only if it can read procfs.
func (c *Caller) ended(proc string) bool {
	here := placeOf("/proc/self/ns/net")
	if _, _, err := process(proc, os.Getpid()); err != nil || here == nil || c.PIDs == nil || *here != *c.PIDs {
		return false
	}
	_, start, err := process(proc, c.PID)
	return err == nil && start != c.Start || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// sandboxes returns the directories in which a containerd keeps a directory for each sandbox that
// it knows. states are the directories of containerd's state, such as /run/containerd.
func sandboxes(states []string) (dirs []string) {
	for _, state := range states {
		dir := filepath.Join(state, "io.containerd.grpc.v1.cri", "sandboxes")
		if st, err := os.Lstat(dir); err == nil && st.IsDir() {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Unknown reports whether there is a containerd, and none has a directory for the sandbox of a container. A sandbox
// gets its directory soon after its ADD, and loses it when the kubelet removes the sandbox or, if
// containerd does not know the sandbox, when containerd starts.
func (j *Judge) Unknown(id string) bool {
	dirs := sandboxes(j.Containerd)
	for _, dir := range dirs {
		if _, err := os.Lstat(filepath.Join(dir, id)); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return len(dirs) > 0 && id != ""
}

// Suspect is a pod's sandbox whose namespace still exists, and which containerd may have forgotten.
type Suspect struct {
	ID     string
	NetNS  string
	IfName string
	Caller *Caller // of its ADD; nil if no record has it
}

// Forgotten reports whether containerd certainly has forgotten a sandbox, and why: containerd has
// no directory for it, no process is in its namespace, and the namespace has no interface that is
// up, other than lo and that of the attachment. If the record has the caller, that containerd must
// have ended, since it may be starting the sandbox; without the caller, the attachment's interface
// must be gone too.
func (j *Judge) Forgotten(s Suspect) (why string, forgotten bool) {
	allowed := s.IfName
	switch {
	case s.NetNS == "" || !j.Unknown(s.ID):
		return "", false
	case s.Caller != nil && !s.Caller.ended(j.Proc):
		return "", false
	case s.Caller == nil && !SeesProcesses():
		return "", false
	case s.Caller == nil:
		allowed = ""
	}
	if !j.idle(s.NetNS, allowed) {
		return "", false
	}
	return fmt.Sprintf("containerd has forgotten its sandbox: no process is in %s", s.NetNS), true
}

// idle reports whether no process has a namespace, and no interface in it is up but lo and allowed.
// It looks at the processes before it opens the namespace, because it is one of them.
func (j *Judge) idle(path, allowed string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil || j.findUsers().processes[st.Ino] {
		return false
	}
	ns, err := netns.Open(path)
	if err != nil {
		return false
	}
	defer ns.Close() //nolint:errcheck // read only
	return j.Quiet != nil && j.Quiet(ns, j.Proc, allowed)
}
