// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/burst"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Follow calls the function do with the state after each burst of changes, until ctx ends. The
// function must not use the state after it returns. The first call comes when each kind has been
// listed once. If the function fails, Follow calls it again at the next change, or after a pause that
// grows up to resident.RetryMost.
//
// Each time before Follow makes a state, it calls the function before, which can call Attach.
func (c *Cluster) Follow(ctx context.Context, w burst.Wait, before func(), do func(*policy.State) error) {
	b := burst.Burst{Wait: w, Changed: c.changed}
	for b.Next(ctx) {
		began := time.Now()
		var s policy.State
		if before(); !c.state(&s) {
			continue // a kind is not listed yet: its list will signal a change
		}
		err := do(&s)
		c.giveBack()
		b.Note(err, began)
	}
}
