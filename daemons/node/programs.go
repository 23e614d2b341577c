// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-net/patchbay/daemons/internal/fabric/health"
)

// The agent puts programs in force in the kernel: of network policies, and of Services. This file has what both need: numbers of
// them, a watch over programs that hang, and pauses between answers to changes that other programs make.

const (
	// compareEvery is how often the whole kernel state is compared, although the kernel tells changes.
	compareEvery = 5 * reconcileEvery

	// restoreEvery is the shortest time between two answers to changes of another program, so that two
	// programs that disagree do not keep the processor busy.
	restoreEvery = 500 * time.Millisecond

	// manyTouches is how often in a minute other programs must change something to be a problem.
	manyTouches = 3
)

// programCounts are the numbers of programs.
type programCounts struct {
	programs    *prometheus.CounterVec
	errors      *prometheus.CounterVec
	touches     prometheus.Counter
	duration    prometheus.Histogram
	transaction prometheus.Histogram
}

// countPrograms returns the numbers of programs of something, such as "network policies". parts are what can fail in one.
func countPrograms(space, of, parts string) programCounts {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: space, Name: name, Help: help}, labels)
	}
	return programCounts{
		programs: counters("programs_total", "Programs of "+of+" that were made, each after a burst of changes.", "result"),
		errors:   counters("errors_total", "Errors of a part of such a program: "+parts+".", "part"),
		touches: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: space, Name: "foreign_changes_total", Help: "Changes of the kernel's " + of + " that another program made, and this one took back.",
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: space, Name: "program_duration_seconds", Help: "Time to compile such a program and to put it in force.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12), //nolint:mnd // 5 ms to 10 s
		}),
		transaction: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: space, Name: "transaction_duration_seconds", Help: "Time of one of such a program's nftables transactions.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 12), //nolint:mnd // 0.5 ms to 1 s
		}),
	}
}

func (c *programCounts) collectors() []prometheus.Collector {
	return []prometheus.Collector{c.programs, c.errors, c.touches, c.duration, c.transaction}
}

// count counts a program with the errors of its parts.
func (c *programCounts) count(took time.Duration, parts map[string]error) {
	result := "success"
	for part, err := range parts {
		if err != nil {
			c.errors.WithLabelValues(part).Inc()
			result = "failure"
		}
	}
	c.programs.WithLabelValues(result).Inc()
	c.duration.Observe(took.Seconds())
}

// busy knows since when a program is being put in force.
type busy struct{ since atomic.Int64 } // in seconds since 1970; 0: none is

// begin notes that one begins. The caller calls end.
func (b *busy) begin(at time.Time) (end func()) {
	b.since.Store(at.Unix())
	return func() { b.since.Store(0) }
}

// running returns for how long a program has been put in force, or 0.
func (b *busy) running() time.Duration {
	since := b.since.Load()
	if since == 0 {
		return 0
	}
	return time.Since(time.Unix(since, 0))
}

// hangs returns an error if the kernel, or another agent with its lock, keeps a change waiting for so long that a
// new process may do better. of is what the programs are of.
func (b *busy) hangs(of string) error {
	took := b.running()
	if took <= health.HungAfter {
		return nil
	}
	return fmt.Errorf("the agent hangs: it has been putting %s in force since %s: see that no other agent runs on this node, and delete the agent's pod to restart it",
		of, time.Now().Add(-took).UTC().Format(time.RFC3339))
}

// pace spaces answers to changes of other programs. Its owner locks it.
type pace struct{ last time.Time }

// next returns the pause before the next answer.
func (p *pace) next() time.Duration {
	pause := max(0, restoreEvery-time.Since(p.last))
	p.last = time.Now().Add(pause)
	return pause
}

// disputes notes changes of other programs.
type disputes struct {
	mu sync.Mutex
	at []time.Time // within a minute
}

func (d *disputes) note() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = append(d.at, time.Now())
}

// lasts reports whether other programs change something again and again.
func (d *disputes) lasts() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = slices.DeleteFunc(d.at, func(at time.Time) bool { return time.Since(at) > reconcileEvery })
	return len(d.at) >= manyTouches
}

// regularly calls look each reconcileEvery, and compare each compareEvery, until ctx ends.
func regularly(ctx context.Context, look, compare func()) {
	often, seldom := time.NewTicker(reconcileEvery), time.NewTicker(compareEvery)
	defer often.Stop()
	defer seldom.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-often.C:
			look()
		case <-seldom.C:
			compare()
		}
	}
}
