// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"context"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/test/probe"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// TestFire fires at a server, at ports without a server, whose refusals are answers, and at an
// address without a host.
func TestFire(t *testing.T) {
	s, err := probe.Serve(":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var targets []probe.Target
	for _, text := range []string{"tcp/127.0.0.1:8080", "udp/[::1]:8080", "tcp/[::1]:9999", "udp/127.0.0.1:9999", "tcp/192.0.2.1:80"} {
		target, err := probe.ParseTarget(text)
		if err != nil || target.String() != text {
			t.Fatalf("%s: %v (%v)", text, target, err)
		}
		targets = append(targets, target)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	noted := map[int]int{}
	results, err := probe.Fire(ctx, 5*time.Millisecond, func(target int, at time.Time, answered bool) {
		if answered != (target < 4) || time.Since(at) > 5*time.Second {
			t.Errorf("target %d at %v: answered %v", target, at, answered)
		}
		noted[target]++
	}, targets...)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		t.Logf("%+v", r)
		if tcp := targets[i].Network == "tcp"; tcp && noted[i] != r.Sent || !tcp && noted[i] != 0 {
			t.Errorf("%s: %d connections noted of %d", r.Target, noted[i], r.Sent)
		}
		if answered := r.Answers > 0; answered != (i < 4) || r.Sent < 3 || r.Answers > r.Sent {
			t.Errorf("%+v", r)
		}
	}
}
