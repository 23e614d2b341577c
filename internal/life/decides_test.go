// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import "testing"

// The process with the path ends during the check. It then holds nothing.
func TestDecidesAtNothing(t *testing.T) {
	was := &Mark{Cookie: 1, Boot: "now"}
	if same, known := was.decidesAt("/proc/0/ns/net"); same || !known {
		t.Errorf("a process that ended: %v, %v", same, known)
	}
}
