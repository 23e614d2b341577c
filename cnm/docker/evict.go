// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/internal/sleep"
)

// evictTime bounds the wait for an endpoint that is in the way of another: for its
// sandbox to come, and what its removal takes. Two that wait for each other are
// both told so.
const evictTime = awaitTime + 5*time.Second

// evict removes an endpoint that is in the way when it is dead, and says whether
// it is gone. A dockerd that was killed starts its containers as soon as it is
// back, with the ports and addresses that they had, and Sweep may be a minute
// away. Age is no reason here, but for one that is between two calls or whose
// sandbox never came: its start or its end was killed there, or is about to go on,
// which is waited for.
func (d *Driver) evict(ctx context.Context, id string, keepLease bool) (gone bool) {
	ctx, cancel := context.WithTimeout(ctx, evictTime)
	defer cancel()
	var h heard
	for {
		c := &collector{d: d, grace: math.MaxInt64, wanted: true, keepLease: keepLease}
		if err := c.endpoint(ctx, id); err != nil {
			d.opts.Log("endpoint %.12s is in the way: %v", id, err)
		}
		h.unsure(d, c.found)
		e, err := d.store.Endpoint(id)
		if err != nil {
			return errors.Is(err, state.ErrUnknown)
		}
		if !passing(e) || !sleep.For(ctx, awaitEvery) {
			return false
		}
	}
}
