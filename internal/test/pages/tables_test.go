// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import "testing"

// A field that the reference lacks is described in one way, so that readers find such fields by these words.
func TestWorded(t *testing.T) {
	for text, want := range map[string]bool{
		"same": true, "none, ours only": true, "none, ours only; with DHCPv6 it is refused": true, "none, it always looks for them": true,
		"does not look at IPv6": true, "": true,
		"none": false, "None, ours only": false, "ours only": false, "no reference": false, "there is no such plugin": false, "none, only ours": false,
	} {
		if got := worded(text); got != want {
			t.Errorf("worded(%q) is %v", text, got)
		}
	}
}
