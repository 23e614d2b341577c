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

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/spec"
)

// Other processes leave a call little of the processors. Its sweep still ends: as root it runs before them.
func TestSweepOnABusyNode(t *testing.T) {
	runtime.LockOSThread() // the thread ends with this goroutine, because nothing unlocks it
	before := podBaseline(t)
	dead := newPod(t, "/run/netns", "dead", 9300)
	dead.exec(t, spec.Add)
	dead.end(t)
	age(t)
	stop := keepBusy(t)
	// A call that gets no processor may hold the kernel's lock of links, for which all other tests wait.
	nice(t, draw.Number(t, "PATCHBAY_SWEEP_NICE", 10, 19))
	another := newPod(t, "/run/netns", "another", 9399)
	end := time.Now().Add(3 * time.Minute) // other tests may leave it even less for a while
	for exists(recordOf(dead)) && time.Now().Before(end) {
		another.exec(t, spec.Add)
		another.exec(t, spec.Del)
	}
	stop()
	if exists(recordOf(dead)) {
		t.Errorf("after three minutes of calls the dead is not swept: %v", records(t, "*"))
	}
	another.end(t)
	leak.NoLeaks(t, before, stateDirs()...)
}

// keepBusy starts processes that are always busy.
func keepBusy(t *testing.T) (stop func()) {
	t.Helper()
	var loops []*exec.Cmd
	stop = func() {
		for _, busy := range loops {
			busy.Process.Kill() //nolint:errcheck // its end is all that matters
			busy.Wait()         //nolint:errcheck // it was killed
		}
		loops = nil
	}
	t.Cleanup(stop)
	for range busyLoops(t) {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		busy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		loops = append(loops, busy)
	}
	return stop
}

// busyLoops is how many other processes are always busy. A user who is not root cannot run before them, and gets more
// of the processors.
func busyLoops(t *testing.T) int {
	t.Helper()
	if unix.Setpriority(unix.PRIO_PROCESS, 0, -1) != nil {
		return runtime.NumCPU()
	}
	nice(t, 0)
	return draw.Number(t, "PATCHBAY_SWEEP_BUSY", 1, 3) * runtime.NumCPU()
}

func nice(t *testing.T, value int) {
	t.Helper()
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, value); err != nil {
		t.Fatal(err)
	}
}
