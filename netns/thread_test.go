// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// Other programs must see the process in its own namespace. They see its first thread, which may
// run any goroutine. So that thread never enters another namespace.
func TestFirstThread(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // goroutines wake on the first thread more often
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for n := range 200 {
		path := fmt.Sprintf("/run/netns/thread%d", n)
		if err := netns.Create(path); err != nil {
			t.Fatal(err)
		}
		ns, err := netns.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := ns.Do(func() error {
			if unix.Gettid() == unix.Getpid() {
				return fmt.Errorf("round %d: entered by the first thread", n)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		ns.Close() //nolint:errcheck // read only
		if err := netns.Delete(path); err != nil {
			t.Fatal(err)
		}
		if now, err := os.Readlink("/proc/self/ns/net"); now != own || err != nil {
			t.Fatalf("round %d: the process is in %s, was in %s: %v", n, now, own, err)
		}
	}
}

// A panic in a namespace is an error of its caller, and the worker goes on.
func TestPanic(t *testing.T) {
	path := nettest.NewNS(t, "panic")
	ns, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // a test
	w := ns.NewWorker()
	defer w.Close()
	for _, do := range []func(func() error) error{w.Do, ns.Visit} {
		if err := do(func() error { panic("tea") }); err == nil || !strings.Contains(err.Error(), "panic in a namespace: tea") {
			t.Error(err)
		}
		if err := do(func() error { return nil }); err != nil {
			t.Error(err)
		}
	}
}
