// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import "testing"

// A process that ends during the check holds nothing.
func TestDecidesAtNothing(t *testing.T) {
	was := &Mark{Cookie: 1, Boot: "now"}
	if same, known := was.decidesAt("/proc/0/ns/net"); same || !known {
		t.Errorf("a process that ended: %v, %v", same, known)
	}
}
