// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"context"
	"time"
)

// Sleep waits for d, or until ctx ends. Sleep reports whether it waited for the whole time. If
// both end at the same moment, it may return either value.
func Sleep(ctx context.Context, d time.Duration) (whole bool) {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
