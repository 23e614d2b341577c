// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestSettle checks that the next look follows soon, however long the last one took.
func TestSettle(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{0: settleTime, time.Second: restFactor * time.Second, time.Minute: settleMost, time.Hour: settleMost} {
		if got := Settle(took); got != want {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
}

// TestPause checks that the time of a rest that has passed is not waited for again.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 100 * time.Millisecond
		ended := time.Now()
		for _, step := range []struct{ later, want time.Duration }{
			{0, restFactor * took}, {300 * time.Millisecond, 100 * time.Millisecond}, {time.Hour, settleTime},
		} {
			time.Sleep(step.later)
			if got := Pause(took, ended); got != step.want {
				t.Errorf("%v later: %v, want %v", step.later, got, step.want)
			}
		}
	})
}

// A process asks a failing server less and less often, and not all agents ask at once.
func TestRetryPause(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		d := Jitter(time.Second)
		if seen[d] = true; d < time.Second/2 || d > 3*time.Second/2 {
			t.Fatal(d)
		}
	}
	if len(seen) < 50 {
		t.Error("all at once")
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		calls := 0
		Repeat(ctx, func(error) {}, func() error { calls++; return errors.New("away") })
		if calls > 4 { // the tries come after 0.5, 1.5 and 3.5 s at the earliest
			t.Errorf("%d calls", calls)
		}
	})
}

// A failure ends only when a later call has lasted for a while.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var failing atomic.Bool
		var calls atomic.Int32
		go Keep(ctx, func(err error) { failing.Store(err != nil) }, func() error {
			if calls.Add(1) < 3 {
				return errors.New("no descriptors")
			}
			<-ctx.Done()
			return nil
		})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !failing.Load() {
			t.Error("a call that has just begun counts as a success")
		}
		time.Sleep(RetryMost + 3*time.Second)
		synctest.Wait()
		if failing.Load() || calls.Load() != 3 {
			t.Errorf("failing: %v after %d calls", failing.Load(), calls.Load())
		}
		cancel()
		synctest.Wait()
	})
}

// A problem is logged when it appears and when it ends.
func TestProblemsLoggedOnce(t *testing.T) {
	var log []string
	away := errors.New("the store is away")
	s := Problems{Log: func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }}
	for range 3 {
		s.Set("store", away)
		s.SetAll("network", map[string]error{"lan": away, "fine": nil})
	}
	s.SetAll("network", map[string]error{"lan": away, "net": away})
	if got := s.Count(); len(got) != 2 || got["network"] != 2 || got["store"] != 1 {
		t.Errorf("%v", got)
	}
	s.SetAll("network", map[string]error{"lan": away})
	s.SetAll("network", nil)
	s.Set("store", nil)
	s.Set("store", nil)
	want := []string{
		"store: the store is away", "network lan: the store is away", "network net: the store is away", "network net: resolved", "network lan: resolved", "store: resolved",
	}
	if !slices.Equal(log, want) || len(s.All()) != 0 || len(s.Count()) != 0 {
		t.Errorf("%q", log)
	}
}
