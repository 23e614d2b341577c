// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// sweepEvery is the longest pause between two collections of Keep.
const sweepEvery = time.Minute

// Pauses between requests to Docker: askUntil before its first answer, as it may be
// booting, askEvery after it.
const (
	askUntil = time.Minute
	askEvery = 15 * time.Minute
)

// Keep collects periodically until ctx ends, and asks Docker periodically.
func (d *Driver) Keep(ctx context.Context) {
	answers := make(chan *dockerView)
	if d.opts.engine != nil {
		go d.keepAsking(ctx, answers)
	}
	every := max(min(sweepEvery, d.opts.Grace/2), time.Second)
	var logged [2]logged // without and with Docker's answer
	var docker *dockerView
	// The first pauses are short: Docker may have started a container while no driver
	// answered the call that finishes its network.
	for pause := placeTime; ctx.Err() == nil; pause = min(2*pause, every) {
		c := &collector{d: d, grace: d.opts.Grace, docker: docker}
		err := c.everything(ctx)
		h := &logged[0]
		if docker != nil {
			h = &logged[1]
		}
		h.failed(ctx, d, err)
		h.unsure(d, c.found)
		docker = nil // used only once: an old answer proves nothing
		select {
		case docker = <-answers:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// keepAsking asks Docker for Keep, since an answer may take long.
func (d *Driver) keepAsking(ctx context.Context, answers chan<- *dockerView) {
	var h logged
	for {
		s, err := d.askDocker(ctx, d.opts.Grace)
		h.failed(ctx, d, err)
		if s != nil {
			select {
			case answers <- s:
			case <-ctx.Done():
			}
		}
		pause := askEvery
		if err != nil {
			pause = askUntil
		}
		if !clock.Sleep(ctx, pause) {
			return
		}
	}
}

// logged remembers what was logged, so that a repeated failure or a kept item is logged
// once.
type logged struct {
	failure resident.Failure
	reasons map[string]string // by kind and name
}

func (h *logged) failed(ctx context.Context, d *Driver, err error) {
	if ctx.Err() == nil && h.failure.Changed(err) && err != nil {
		d.opts.Log("%v", err)
	}
}

// unsure logs the items that are kept because they are unsure.
func (h *logged) unsure(d *Driver, found []Item) {
	was := h.reasons
	h.reasons = make(map[string]string)
	for _, i := range found {
		if i.State != life.Unsure.String() {
			continue
		}
		name := i.Kind + " " + i.Name
		if h.reasons[name] = i.Why; was[name] != i.Why {
			d.opts.Log("%s is kept: %s", name, i.Why)
		}
	}
}

// evictTime bounds the wait for another endpoint that has the wanted port or address: for
// its sandbox to appear, and for its removal. Two endpoints that wait for each other both
// get an error.
const evictTime = awaitTime + 5*time.Second

// evict removes an endpoint that has a wanted port or address if it is dead, and says
// whether it is gone. A dockerd that was killed starts its containers as soon as it is
// back, with their old ports and addresses, and Keep may collect only a minute later. Age
// does not make an endpoint dead here, unless it is between two calls or its sandbox
// never appeared: its start or its end was killed there, or is about to continue, so
// evict waits for that.
func (d *Driver) evict(ctx context.Context, id string, keepLease bool) (gone bool) {
	ctx, cancel := context.WithTimeout(ctx, evictTime)
	defer cancel()
	var h logged
	for {
		c := &collector{d: d, grace: math.MaxInt64, wanted: true, keepLease: keepLease}
		if err := c.endpoint(ctx, id); err != nil {
			d.opts.Log("evict endpoint %.12s: %v", id, err)
		}
		h.unsure(d, c.found)
		e, err := d.store.Endpoints.Get(id)
		if err != nil {
			return errors.Is(err, state.ErrUnknown)
		}
		if !passing(e) || !clock.Sleep(ctx, awaitEvery) {
			return false
		}
	}
}
