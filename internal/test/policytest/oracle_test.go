// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"
	"testing"
)

// TestWhoDecides checks which policies Verdict.MayName accepts.
func TestWhoDecides(t *testing.T) {
	c := townWith(t, []string{
		`{"podSelector":{},"policyTypes":["Ingress"]}`,
		`{"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}`,
		`in b: {"podSelector":{},"policyTypes":["Egress"],"egress":[{"ports":[{"port":80},{"port":81}]}]}`,
		`{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"networks":["203.0.113.0/24"]}]}]}`,
	})
	for _, w := range []struct {
		from, to string
		port     int32
		names    []string
	}{
		{"b/web", "a/web", 80, []string{"a/p1", "b/p0"}},
		{"b/web", "a/web", 81, []string{"a/p0", "a/p1"}},
		{"b/web", "a/web", 82, []string{"a/p0", "a/p1", "b/p0"}},
		{"b/web", "world", 80, []string{"p3"}},
		{"c/bare", "n1", 80, nil},
	} {
		p := Probe{place(t, w.from, false), place(t, w.to, false), "TCP", w.port}
		v := c.Decide(p)
		for _, name := range []string{"a/p0", "a/p1", "b/p0", "p3", "", "a/p9"} {
			if got := v.MayName(name); got != slices.Contains(w.names, name) {
				t.Errorf("%s: %q may be named: %v, want %q", p, name, got, w.names)
			}
		}
	}
}
