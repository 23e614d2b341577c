// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"time"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/once"
	"github.com/patchbay-net/patchbay/internal/sleep"
)

// sweepEvery is how often Keep collects, at most.
const sweepEvery = time.Minute

// How often Docker is asked: until it has answered, as it may be booting, and
// then.
const (
	askUntil = time.Minute
	askEvery = 15 * time.Minute
)

// Keep collects now and then until ctx ends, and asks Docker now and then.
func (d *Driver) Keep(ctx context.Context) {
	answers := make(chan *said)
	if d.opts.Engine != nil {
		go d.keepAsking(ctx, answers)
	}
	every := max(min(sweepEvery, d.opts.Grace/2), time.Second)
	var heard [2]heard // without Docker's word, and with it
	var docker *said
	// At first more often: Docker may have started a container while no driver answered
	// the call that was to finish its network.
	for pause := placeTime; ctx.Err() == nil; pause = min(2*pause, every) {
		c := &collector{d: d, grace: d.opts.Grace, docker: docker}
		err := c.everything(ctx)
		h := &heard[0]
		if docker != nil {
			h = &heard[1]
		}
		h.failed(ctx, d, err)
		h.unsure(d, c.found)
		docker = nil // it is believed once: what it had an hour ago proves nothing
		select {
		case docker = <-answers:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// keepAsking asks Docker, which may take its time, for Keep.
func (d *Driver) keepAsking(ctx context.Context, answers chan<- *said) {
	var h heard
	for {
		s, err := d.hear(ctx, d.opts.Grace)
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
		if !sleep.For(ctx, pause) {
			return
		}
	}
}

// heard is what was logged before of what goes wrong, or stays, again and again.
type heard struct {
	failure once.Failure
	stays   map[string]string // why, by what
}

func (h *heard) failed(ctx context.Context, d *Driver, err error) {
	if ctx.Err() == nil && h.failure.News(err) && err != nil {
		d.opts.Log("%v", err)
	}
}

// unsure logs what stays because it is unsure.
func (h *heard) unsure(d *Driver, found []Item) {
	was := h.stays
	h.stays = make(map[string]string)
	for _, i := range found {
		if i.State != life.Unsure.String() {
			continue
		}
		name := i.Kind + " " + i.Name
		if h.stays[name] = i.Why; was[name] != i.Why {
			d.opts.Log("%s stays: %s", name, i.Why)
		}
	}
}
