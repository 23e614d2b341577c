// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/spec"
	"github.com/patchbay-net/patchbay/test/nettest/leak"
)

// Other processes leave a sweep 1 or 2 % of the processors. It still ends.
func TestSweepOnABusyNode(t *testing.T) {
	runtime.LockOSThread() // the thread ends with this goroutine, because nothing unlocks it
	before := podBaseline(t)
	dead := newPod(t, "/run/netns", "dead", 9300)
	dead.exec(t, spec.Add)
	dead.end(t)
	age(t)
	for range runtime.NumCPU() {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		busy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { busy.Process.Kill(); busy.Wait() }() //nolint:errcheck // its end is all that matters
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19); err != nil {
		t.Fatal(err)
	}
	another := newPod(t, "/run/netns", "another", 9399)
	end := time.Now().Add(3 * time.Minute) // other tests may leave it even less for a while
	for exists(recordOf(dead)) && time.Now().Before(end) {
		another.exec(t, spec.Add)
		another.exec(t, spec.Del)
	}
	if exists(recordOf(dead)) {
		t.Errorf("after three minutes of calls the dead is not swept: %v", records(t, "*"))
	}
	another.end(t)
	leak.NoLeaks(t, before, stateDirs()...)
}
