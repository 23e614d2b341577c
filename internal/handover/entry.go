// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bytes"
	"io"
	"os"
	"syscall"
)

// The entry routine uses this memory. All of it is zero in a program that was linked without the
// routine.
var (
	input    [maxInput]byte
	inputLen int            // bytes of standard input that the routine has read
	lost     bool           // a server took the call and died
	lean     bool           // the routine has set GOMAXPROCS
	limited  bool           // the routine has lowered the limit of open files
	files    syscall.Rlimit // the limit before
)

// Restore undoes the changes that the entry routine made to the process for the start of Go's runtime.
// The first statement of main must call it.
func Restore() {
	if limited {
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files) // at most the hard limit, so it cannot fail
	}
	if lean {
		_ = os.Unsetenv("GOMAXPROCS")
	}
}

// Stdin returns standard input, with what the entry routine has read of it.
func Stdin() io.Reader {
	if inputLen == 0 {
		return os.Stdin
	}
	return io.MultiReader(bytes.NewReader(input[:inputLen]), os.Stdin)
}

// Lost reports whether a server took the call of this process and died before it answered. The call may
// be half done.
func Lost() bool { return lost }
