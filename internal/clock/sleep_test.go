// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		began := time.Now()
		for i, c := range []struct {
			d, after time.Duration
			whole    bool
		}{
			{0, 0, true},
			{-time.Second, 0, true}, // the time is over already
			{time.Minute, time.Minute, true},
			{time.Minute, 90 * time.Second, false},
			{time.Minute, 90 * time.Second, false}, // ends at once
		} {
			if whole := Sleep(ctx, c.d); whole != c.whole || time.Since(began) != c.after {
				t.Errorf("%d: %s: %v after %s", i, c.d, whole, time.Since(began))
			}
		}
	})
}
