// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package flock

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const unknown = "another process holds it"

// holderOf describes the processes that hold the lock of an open file. The kernel's list (proc(5), /proc/locks)
// names the process that took the lock. A process that inherited the lock is not in the list.
func holderOf(fd int) string {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return unknown
	}
	list, err := os.ReadFile("/proc/locks")
	if err != nil {
		return unknown
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino) //nolint:unconvert // Dev is 32 bits wide on some architectures
	var found []string
	for _, line := range strings.Split(string(list), "\n") {
		// A line has the format "1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF". The line of a
		// waiting process has "->" before FLOCK.
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && f[5] == file && f[4] != "0" {
			name, _ := os.ReadFile("/proc/" + f[4] + "/comm")
			found = append(found, strings.TrimSpace(f[4]+" "+string(name)))
		}
	}
	if len(found) == 0 {
		return unknown
	}
	return "held by process " + strings.Join(found, ", ")
}
