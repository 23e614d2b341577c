// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The kernel's process accounting writes one record for each process that ends in our PID
// namespace. So the count is exact without tracing.

const (
	acctFile   = "/run/bench.acct"
	acctRecord = 64 // sizeof(struct acct_v3)
	acctComm   = 48 // offset of its ac_comm
	acctPID    = 16 // offset of its ac_pid
	acctForked = 1  // AFORK in ac_flag, the first byte: the process ended without an exec
)

// countProcesses returns the programs that were executed and ended while f ran, by name. It leaves
// out processes that forked and ended without an exec, because Go's runtime starts such a child to
// test pidfd.
func countProcesses(f func() error) (map[string]int, error) {
	if err := os.WriteFile(acctFile, nil, 0o600); err != nil {
		return nil, err
	}
	if err := acct(acctFile); err != nil {
		return nil, fmt.Errorf("start process accounting: %w", err)
	}
	err := f()
	if err := acct(""); err != nil {
		return nil, fmt.Errorf("stop process accounting: %w", err)
	}
	if err != nil {
		return nil, err
	}
	records, err := os.ReadFile(acctFile)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for ; len(records) >= acctRecord; records = records[acctRecord:] {
		pid := binary.NativeEndian.Uint32(records[acctPID:])
		if records[0]&acctForked != 0 || int(pid) == os.Getpid() { // the end of the accounting writes a record about this process
			continue
		}
		name, _, _ := bytes.Cut(records[acctComm:acctRecord], []byte{0})
		counts[string(name)]++
	}
	return counts, nil
}

func acct(path string) error {
	if path == "" {
		_, _, errno := unix.Syscall(unix.SYS_ACCT, 0, 0, 0)
		return errnoErr(errno)
	}
	return unix.Acct(path)
}

func errnoErr(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
