// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// HungLocker starts a process that takes the flock(2) of the file or directory at path, or of a
// new file there. It stops the process (SIGSTOP). end kills the process; so does the end of the
// test.
func HungLocker(t testing.TB, path string) (pid string, end func()) {
	t.Helper()
	Need(t, Program("flock"))
	cmd := exec.Command("flock", "--no-fork", path, "sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = cmd.Process.Kill() // twice does no harm
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	for !locked(t, path) || !sleeps(cmd.Process.Pid) {
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(cmd.Process.Pid), end
}

// sleeps reports whether flock(1) has started sleep(1). If the process were stopped before, a
// process of another name would hold the lock.
func sleeps(pid int) bool {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && string(name) == "sleep\n"
}

func locked(t testing.TB, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return errors.Is(err, unix.EWOULDBLOCK)
}
