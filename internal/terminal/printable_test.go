// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import "testing"

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{"": "", "web 1, é": "web 1, é", "a\x1b[2J\nb\tc": `a\x1b[2J\nb\tc`, "a\u202eb\u200b": `a\u202eb\u200b`} {
		if got := Printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
