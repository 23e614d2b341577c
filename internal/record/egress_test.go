// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/paths"
)

// BenchmarkEgressOf measures the additional cost of each ADD of a masqueraded pod on a node without
// egress addresses.
func BenchmarkEgressOf(b *testing.B) {
	p := paths.Paths{State: b.TempDir()}
	for b.Loop() {
		if e, err := EgressOf(p, "default"); err != nil || e.Use != nil {
			b.Fatal(e, err)
		}
	}
}
