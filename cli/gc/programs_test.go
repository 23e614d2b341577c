// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A runtime's program may be a script whose child does not end. The time limit ends both, and gc goes on.
func TestProgramWithAHungChild(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pid")
	script := "#!/bin/sh\nsleep 1000 &\necho $! >" + pids + ".new\nmv " + pids + ".new " + pids + "\nwait\n"
	if err := os.WriteFile(filepath.Join(dir, "crictl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := output(ctx, []string{"crictl"})
		done <- err
	}()
	var child int
	for child == 0 {
		text, _ := os.ReadFile(pids)
		child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		time.Sleep(time.Millisecond)
	}
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("the program did not hang")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("gc waits for the child of a killed script")
	}
	for range 1000 {
		if syscall.Kill(child, 0) != nil {
			return
		}
		if stat, _ := os.ReadFile("/proc/" + strconv.Itoa(child) + "/stat"); strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the child still runs")
}
