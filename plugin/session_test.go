// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Work after a call has one second. A call does not wait longer for it, even if the work does not end then.
func TestWorkAfterACall(t *testing.T) {
	var stderr strings.Builder
	s := &Session{Stderr: &stderr}
	end := make(chan struct{})
	defer close(end)
	given := make(chan time.Duration, 1)
	s.OnDone(func() func(context.Context) {
		return func(ctx context.Context) {
			at, _ := ctx.Deadline()
			given <- time.Until(at)
			<-end
		}
	})
	began := time.Now()
	s.afterwards()
	took, limit := time.Since(began), <-given
	if limit <= 0 || limit > time.Second || took > 10*time.Second {
		t.Errorf("the work has %v, and the call waits %v", limit, took)
	}
	if !strings.Contains(stderr.String(), "a later call sweeps again") {
		t.Errorf("it says %q", &stderr)
	}
}

// Work after a call of patchbayd plugins runs before other processes, and the calls beside it as before.
func TestWorkAfterACallRunsFirst(t *testing.T) {
	const normal = 20 // as the system call counts, from 40, the highest
	in := make(chan int, 1)
	s := &Session{}
	s.OnDone(func() func(context.Context) {
		return func(context.Context) {
			got, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
			in <- got
		}
	})
	before, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := normal - highestPriority
	if !mayHurry() {
		want = before
	}
	s.afterwards()
	if got := <-in; got != want {
		t.Errorf("the work has the priority %d, want %d", got, want)
	}
	if after, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || after != before {
		t.Errorf("a call has the priority %d, %v, and had %d", after, err, before)
	}
}

// mayHurry reports whether this process may raise priorities, tried on a thread that ends.
func mayHurry() bool {
	may := make(chan bool)
	go func() {
		runtime.LockOSThread()
		may <- unix.Setpriority(unix.PRIO_PROCESS, 0, highestPriority) == nil
	}()
	return <-may
}
