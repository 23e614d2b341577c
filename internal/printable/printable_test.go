// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import "testing"

func TestText(t *testing.T) {
	for in, want := range map[string]string{"": "", "web 1, é": "web 1, é", "a\x1b[2J\nb\tc": `a\x1b[2J\nb\tc`, "a\u202eb\u200b": `a\u202eb\u200b`} {
		if got := Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
