// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestInterruptedDemo sends a signal in the middle of a demo. The demo ends with the report of
// its cleanup, and reports no failing paths. Its standard output is a nearly full pipe, so it
// cannot finish before the signal.
func TestInterruptedDemo(t *testing.T) {
	const size, room = 4096, 600 // the whole demo prints more than the free room, and it prints less before the first containers
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // a test
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, size); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(strings.Repeat("x", size-room)); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd := exec.Command("/proc/self/exe", "demo")
	cmd.Args[0], cmd.Stdout, cmd.Stderr = "patchbay", w, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close() //nolint:errcheck // the demo has a copy
	for end := time.Now().Add(30 * time.Second); waiting(t, r) < size-room/2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the demo says nothing")
		}
	}
	if err := unix.Kill(-cmd.Process.Pid, unix.SIGINT); err != nil { // as a terminal sends it
		t.Fatal(err)
	}
	stdout, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	var ended *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ended) || ended.ExitCode() != exitSignal+int(unix.SIGINT) {
		t.Errorf("the demo ended with %v", err)
	}
	if strings.Contains(string(stdout), "FAIL") || strings.Contains(stderr.String(), "do not work") || !strings.Contains(stderr.String(), "error: interrupted (interrupt)") {
		t.Errorf("%s\n%s", stdout, &stderr)
	}
}

// waiting is the number of unread bytes in a pipe.
func waiting(t *testing.T, r *os.File) int {
	t.Helper()
	n, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
