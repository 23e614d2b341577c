// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/drops"
)

// Kind is one kind of drops, which the kernel counts for itself.
type Kind struct{ Direction, Cause string }

// tally compares what the kernel counted with what it told. Its sums begin when the agent begins to read.
type tally struct {
	since       time.Time
	last        map[Kind]uint64 // the kernel's counters, when they were last read; nil: never
	counted     map[Kind]uint64
	told        map[Kind]uint64
	said        map[Kind]uint64 // of those that were not told
	lost        uint64
	missed      uint64 // lines that a client was too slow for
	unexplained uint64
}

func newTally(now time.Time) tally {
	return tally{since: now, counted: map[Kind]uint64{}, told: map[Kind]uint64{}, said: map[Kind]uint64{}}
}

// read adds what the kernel counted since the last call. A counter that became smaller was made again.
func (t *tally) read(counters map[Kind]uint64) {
	for k, n := range counters {
		was, known := t.last[k]
		switch {
		case t.last == nil: // from before
		case known && n >= was:
			t.counted[k] += n - was
		default:
			t.counted[k] += n
		}
	}
	t.last = maps.Clone(counters)
	if t.last == nil {
		t.last = map[Kind]uint64{}
	}
}

// more returns how many packets of each kind were not told since the last call.
func (t *tally) more() (list []drops.More) {
	for k, n := range t.counted {
		if known := t.told[k] + t.said[k]; n > known {
			list = append(list, drops.More{Direction: k.Direction, Cause: k.Cause, Packets: n - known})
			t.said[k] += n - known
		}
	}
	slices.SortFunc(list, func(a, b drops.More) int {
		return cmp.Or(cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Cause, b.Cause))
	})
	return list
}

// totals returns the sums. What was told and not counted yet belongs to the next reading of the counters.
func (t *tally) totals() *drops.Totals {
	out := &drops.Totals{Since: t.since, Lost: t.lost, Unexplained: t.unexplained}
	for _, n := range t.told {
		out.Shown += n
	}
	for _, n := range t.counted {
		out.Counted += n
	}
	out.Counted = max(out.Counted, out.Shown+out.Lost)
	out.NotShown = out.Counted - out.Shown - out.Lost
	return out
}
