// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package static

import "testing"

// An IPv4 address may be written as an IPv6 address. The reference reads it so, too.
func TestMappedAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"::ffff:10.7.0.5/120": "10.7.0.5/24", "::ffff:10.7.0.5/128": "10.7.0.5/32", "::ffff:10.7.0.5/104": "10.7.0.5/8",
		"::ffff:10.7.0.5/95": "", "::ffff:10.7.0.5/129": "", "fd00::5/64": "fd00::5/64",
	} {
		got, ok := parseCIDR(text)
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%s: %v %v, want %q", text, got, ok, want)
		}
	}
}
