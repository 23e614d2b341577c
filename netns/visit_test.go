// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newNS makes a namespace for a test, and opens it.
func newNS(t *testing.T, name string) *NS {
	t.Helper()
	path := "/run/netns/" + name
	if err := Create(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Delete(path) }) //nolint:errcheck // a test
	ns, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() }) //nolint:errcheck // read only
	return ns
}

// If a thread cannot return from a namespace, it runs nothing more. The caller and all other
// goroutines are in the old namespace.
func TestVisitWithoutReturn(t *testing.T) {
	ns := newNS(t, "visited")
	inside := make(chan bool, 1)
	err := ns.visit(func() error {
		own, err := ns.IsCurrent()
		inside <- own
		return err
	}, func(*NS) error { return unix.EPERM })
	if err == nil || !<-inside {
		t.Fatalf("the thread came back, or was never there: %v", err)
	}
	for range 100 { // many times, so that the goroutines run on every thread
		done := make(chan bool)
		go func() {
			own, err := ns.IsCurrent()
			done <- own || err != nil
		}()
		if <-done {
			t.Fatal("a goroutine runs in the container's namespace")
		}
	}
	for deadline := time.Now().Add(time.Minute); slices.Contains(threadsIn(t, ns), true); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the thread is still there")
		}
	}
}

// threadsIn reports for each thread whether it is in ns. It leaves out the first thread, which no
// program can end.
func threadsIn(t *testing.T, ns *NS) (in []bool) {
	t.Helper()
	want, err := ns.ID()
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		var st unix.Stat_t
		if filepath.Base(filepath.Dir(filepath.Dir(p))) != strconv.Itoa(os.Getpid()) && unix.Stat(p, &st) == nil {
			in = append(in, st.Ino == want.Ino)
		}
	}
	return in
}

// Open refuses a FIFO and a device as no namespace, and does not block in opening them.
func TestOpenWaitsForNothing(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/null", "/dev/tty", "/dev/ptmx"} {
		done := make(chan error, 1)
		go func() {
			_, err := Open(path)
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s is a namespace", path)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: waits", path)
		}
		if Is(path) {
			t.Errorf("%s is a namespace", path)
		}
	}
	if !Is("/proc/self/ns/net") {
		t.Error("/proc/self/ns/net is none")
	}
}
