// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcptest

import (
	"context"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
)

// Clock is the machine's clock, but can jump. So a test can end a sleep of an hour at once. A new
// Clock shows the real time.
type Clock struct {
	mu     sync.Mutex
	ahead  time.Duration
	slept  time.Duration                 // how long the machine was suspended
	asleep map[*time.Timer]time.Duration // until when
}

// NewClock returns a clock that has not jumped yet.
func NewClock() *Clock { return &Clock{asleep: map[*time.Timer]time.Duration{}} }

// Since returns the time since boot.
func (c *Clock) Since() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return clock.SinceBoot() + c.ahead
}

// Sleep waits for d, at most until ctx ends.
func (c *Clock) Sleep(ctx context.Context, d time.Duration) {
	if d <= 0 || ctx.Err() != nil {
		return
	}
	timer := c.sleep(d)
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	c.wake(timer)
}

func (c *Clock) sleep(d time.Duration) *time.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := time.NewTimer(d)
	c.asleep[timer] = clock.SinceBoot() + c.ahead + d
	return timer
}

func (c *Clock) wake(timer *time.Timer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer.Stop()
	delete(c.asleep, timer)
}

// Asleep returns the number of sleepers.
func (c *Clock) Asleep() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.asleep)
}

// Suspend suspends the machine for d: the time since boot goes on, and timers do not.
func (c *Clock) Suspend(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead, c.slept = c.ahead+d, c.slept+d
	for timer, end := range c.asleep {
		c.asleep[timer] = end + d
	}
}

// Awake returns the time since boot for which the machine was not suspended.
func (c *Clock) Awake() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return clock.SinceBoot() + c.ahead - c.slept
}

// Jump moves the clock to the time at which the first sleeper wakes. Asleep no longer counts that
// sleeper, which may need a moment to continue.
func (c *Clock) Jump() {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, any := time.Duration(0), false
	for _, end := range c.asleep {
		if !any || end < first {
			first, any = end, true
		}
	}
	if !any {
		return
	}
	c.ahead += max(0, first-clock.SinceBoot()-c.ahead)
	now := clock.SinceBoot() + c.ahead
	for timer, end := range c.asleep {
		timer.Reset(max(0, end-now))
		if end <= now {
			delete(c.asleep, timer)
		}
	}
}
