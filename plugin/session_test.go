// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Work after a call has one second. A call does not wait longer for it, even if the work does not end then.
func TestWorkAfterACall(t *testing.T) {
	var stderr strings.Builder
	s := &Session{Stderr: &stderr}
	end := make(chan struct{})
	defer close(end)
	given := make(chan time.Duration, 1)
	s.OnDone(func() func(context.Context) {
		return func(ctx context.Context) {
			at, _ := ctx.Deadline()
			given <- time.Until(at)
			<-end
		}
	})
	began := time.Now()
	s.afterwards()
	took, limit := time.Since(began), <-given
	if limit <= 0 || limit > time.Second || took > 10*time.Second {
		t.Errorf("the work has %v, and the call waits %v", limit, took)
	}
	if !strings.Contains(stderr.String(), "a later call sweeps again") {
		t.Errorf("it says %q", &stderr)
	}
}
