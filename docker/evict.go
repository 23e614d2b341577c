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
)

// evictTime bounds the wait for another endpoint that has the wanted port or address: for
// its sandbox to appear, and for its removal. Two endpoints that wait for each other both
// get an error.
const evictTime = awaitTime + 5*time.Second

// evict removes an endpoint that has a wanted port or address if it is dead, and says
// whether it is gone. A dockerd that was killed starts its containers as soon as it is
// back, with their old ports and addresses, and Sweep may run only a minute later. Age
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
