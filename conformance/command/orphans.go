// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt makes this process the parent of every daemon that a plugin starts, and returns what kills them: they would outlive the
// namespaces of the test.
func adopt() (kill func(), err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the parent of daemons: %w", err)
	}
	return func() {
		for children := orphans(); len(children) > 0; children = orphans() { // a daemon's own children come when it has ended
			for _, pid := range children {
				_ = syscall.Kill(pid, syscall.SIGKILL) // fails if it has ended
				_, _ = syscall.Wait4(pid, nil, 0, nil) // it was killed
			}
		}
	}, nil
}

// orphans are the children of this process.
func orphans() (pids []int) {
	entries, _ := os.ReadDir("/proc") // without /proc no plugin works
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile("/proc/" + e.Name() + "/stat")           // it may have ended
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // after the name, which may have spaces: state, parent
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}
