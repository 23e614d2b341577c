// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// mounts counts the mounts on a directory.
func mounts(t *testing.T, dir string) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == dir {
			n++
		}
	}
	return n
}

// Several processes make the first namespaces after a boot at once. The directory is mounted only
// once.
func TestFirstAtOnce(t *testing.T) {
	for round := range 60 {
		dir := fmt.Sprintf("/run/first%d", round)
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				path := filepath.Join(dir, fmt.Sprint(i))
				if err := netns.Create(path); err != nil {
					t.Error(err)
				}
				if err := netns.Delete(path); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := mounts(t, dir); n != 1 {
			t.Errorf("round %d: %d mounts on the directory", round, n)
		}
	}
}

// The wait for a locked directory is limited, and the error names the process that holds the lock.
func TestDirectoryThatStaysLocked(t *testing.T) {
	dir := "/run/locked"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := durable.LockDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	was := *netns.LockTime
	defer func() { *netns.LockTime = was }()
	*netns.LockTime = 10 * time.Millisecond
	const want = "another process, which lslocks(8) names, has kept it for 10ms"
	if err := netns.Create(filepath.Join(dir, "ns")); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("it says %v, not %s", err, want)
	}
}

// IsOwn distinguishes namespaces. For a path that is not a namespace it returns the same error as
// Open.
func TestIsOwn(t *testing.T) {
	path := nettest.NewNS(t, "other")
	runtime.LockOSThread() // /proc/self shows the first thread, which another test may have left in a foreign namespace
	defer runtime.UnlockOSThread()
	own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
	for at, want := range map[string]bool{path: false, own: true, "/proc/thread-self/ns/net": true} {
		if own, err := netns.IsOwn(at); err != nil || own != want {
			t.Errorf("IsOwn(%s) is %v, %v", at, own, err)
		}
	}
	for _, at := range []string{"/run/missing", "/run", "/dev/null"} {
		_, want := netns.Open(at)
		if own, err := netns.IsOwn(at); own || err == nil || err.Error() != want.Error() {
			t.Errorf("IsOwn(%s) is %v, %v, want %v", at, own, err, want)
		}
	}
}
