// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"context"
	"time"
)

// Sleep waits for d, at most until ctx ends, and reports whether it waited to the end;
// either answer is possible when both end together.
func Sleep(ctx context.Context, d time.Duration) (whole bool) {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
