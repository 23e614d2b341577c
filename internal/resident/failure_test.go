// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"errors"
	"fmt"
	"testing"
)

func TestChanged(t *testing.T) {
	away, full := errors.New("the store is away"), errors.New("the disk is full")
	var f Failure
	for i, c := range []struct {
		err  error
		news bool
	}{
		{nil, false}, // there was no failure before
		{away, true},
		{away, false},
		{fmt.Errorf("the store %s", "is away"), false}, // another error with the same text
		{full, true},
		{away, true}, // only the last failure counts
		{nil, true},
		{nil, false},
		{away, true}, // again after a success
	} {
		if got := f.Changed(c.err); got != c.news {
			t.Errorf("%d: %v is news: %v", i, c.err, got)
		}
		want := ""
		if c.err != nil {
			want = c.err.Error()
		}
		if f.String() != want {
			t.Errorf("%d: %q, want %q", i, f, want)
		}
	}
}
