// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// trait is a property of a process. If a trait of the plugin process and of the server differ, the
// server would act differently from the plugin process.
type trait struct{ what, value string }

// These files and lines of /proc/PID (proc(5)) contain the traits of a process.
var (
	traitFiles = [...]string{"exe", "root", "cwd", "ns/mnt", "ns/net", "ns/pid", "ns/user"}
	traitLines = [...]string{"Umask", "Uid", "Gid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"}
)

// traitsOf returns the traits of a process, and its parent.
func traitsOf(pid string) (traits []trait, parent int, err error) {
	dir := "/proc/" + pid + "/"
	traits = make([]trait, 0, len(traitFiles)+len(traitLines)+1)
	for _, name := range traitFiles {
		var st unix.Stat_t
		if err := unix.Stat(dir+name, &st); err != nil {
			return nil, 0, fmt.Errorf("read the process's %s: %w", name, err)
		}
		traits = append(traits, trait{name, strconv.FormatUint(st.Dev, 16) + ":" + strconv.FormatUint(st.Ino, 16)})
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return nil, 0, fmt.Errorf("read the process's status: %w", errors.Unwrap(err)) // without the process's number, because the log has each reason once
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		if key == "PPid" {
			parent, _ = strconv.Atoi(value) // the kernel writes a number
		}
		if slices.Contains(traitLines[:], key) {
			traits = append(traits, trait{key, value})
		}
	}
	label, _ := os.ReadFile(dir + "attr/current") // fails without a security module
	return append(traits, trait{"security label", string(label)}), parent, nil
}

// descends reports whether a process was started by this process, directly or through others.
func descends(pid int) bool {
	for self := os.Getpid(); pid > 1; {
		if pid == self {
			return true
		}
		_, parent, err := traitsOf(strconv.Itoa(pid))
		if err != nil {
			return false
		}
		pid = parent
	}
	return false
}

// compare returns an error that names the first trait that differs.
func compare(own, other []trait) error {
	for i, t := range own {
		if i >= len(other) || other[i] != t {
			return fmt.Errorf("its %s differs from the server's", t.what)
		}
	}
	return nil
}

// peerOf returns the process at the other end of a connection.
func peerOf(conn *net.UnixConn) (pid string, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return "", err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return "", err
	}
	if failed != nil {
		return "", fmt.Errorf("SO_PEERCRED: %w", failed)
	}
	return strconv.Itoa(int(cred.Pid)), nil
}
