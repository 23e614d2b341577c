// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package sleep is time.Sleep for who may be told to stop.
package sleep

import (
	"context"
	"time"
)

// For waits for d, at most until ctx ends, and says whether it waited to the end.
// When both come together either may be said.
func For(ctx context.Context, d time.Duration) (whole bool) {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
