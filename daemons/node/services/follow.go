// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/burst"
	"github.com/patchbay-net/patchbay/internal/services"
)

// Changed says what differs from the last state.
type Changed struct {
	All   bool            // anything may, so compile everything
	Names []services.Name // of the Services that do otherwise, sorted

	// Triggers are the times of what changed endpoints since this agent started (services.Slice.Triggered).
	Triggers []time.Time
}

func (c Changed) empty() bool { return !c.All && len(c.Names) == 0 }

// changes are what the next state must bring.
type changes struct {
	all   bool
	names map[services.Name]bool
	since time.Time // when the first one came

	ignored bool // nothing is noted, because there is no next state

	triggers map[services.Name][]time.Time // of slices, by their Service
}

func newChanges() changes {
	return changes{names: make(map[services.Name]bool), triggers: make(map[services.Name][]time.Time)}
}

func (c *changes) empty() bool { return !c.all && len(c.names) == 0 }

func (c *changes) begin() {
	if c.empty() {
		c.since = time.Now()
	}
}

// note notes that a Service does otherwise.
func (c *changes) note(name services.Name) (changed bool) {
	if c.begin(); !c.ignored {
		c.names[name] = true
	}
	return true
}

// trigger notes when something was changed of which the endpoints of a Service are the consequence.
func (c *changes) trigger(name services.Name, at time.Time) {
	if !c.ignored {
		c.triggers[name] = append(c.triggers[name], at)
	}
}

// everything notes that all may do otherwise.
func (c *changes) everything() (changed bool) {
	c.begin()
	c.all = true
	return true
}

// Follow calls the function do with the state after each burst of changes, until ctx ends. The function must not use the state after it
// returns. The first call comes when each kind has been listed once, and is for all. If the function fails, Follow calls it again for all at the
// next change, or after a pause that grows up to resident.RetryMost.
//
// Each time before Follow makes a state, it calls the function before, which can call SetAddresses.
func (c *Cluster) Follow(ctx context.Context, w burst.Wait, before func(), do func(*services.State, Changed) error) {
	b := burst.Burst{Wait: w, Changed: c.changed}
	for b.Next(ctx) {
		began := time.Now()
		before()
		changed, complete := c.next()
		if !complete {
			continue // the list of another kind will be a change
		}
		var err error
		if !changed.empty() { // else the last state had it already
			err = do(&c.state, changed)
		}
		c.done(changed, err)
		b.Note(err, began)
	}
}

// done notes how putting changes in force ended. After a failure the next state is one for all; done gives no signal, because the next try
// waits.
func (c *Cluster) done(changed Changed, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.working = time.Time{}
		return
	}
	c.due.everything()
	c.untold = append(c.untold, changed.Triggers...)
}

// next brings the state up to date. It does nothing until each kind has been listed once.
func (c *Cluster) next() (changed Changed, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.Complete() {
		return changed, false
	}
	s, o := &c.state, &c.objects
	changed.Names = slices.SortedFunc(maps.Keys(c.due.names), compareNames)
	if changed.All = c.due.all; changed.All {
		s.Node, s.Addresses, s.CIDRs = o.node, o.addresses, o.ranges()
		changed.Names = nil
	}
	changed.Triggers, c.untold = slices.AppendSeq(c.untold, times(c.due.triggers)), nil
	if c.working.IsZero() {
		c.working = c.pending()
	}
	c.due = newChanges()
	return changed, true
}

func times(lists map[services.Name][]time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for _, list := range lists {
			for _, at := range list {
				if !yield(at) {
					return
				}
			}
		}
	}
}

func compareNames(a, b services.Name) int { return strings.Compare(a.String(), b.String()) }
