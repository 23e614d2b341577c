// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"fmt"
	"testing"

	"github.com/patchbay-net/patchbay/store"
)

// A directory that was emptied has another history, whatever its number: its revisions do
// not follow, and a watch does not continue.
func TestAnotherHistory(t *testing.T) {
	before := open(t, t.TempDir(), Options{})
	create(t, before, "a")
	_, was, err := before.Networks().List(t.Context(), "")
	must(t, err)
	s := open(t, t.TempDir(), Options{})
	for n := range 5 {
		create(t, s, fmt.Sprint("n", n))
	}
	_, now, err := s.Networks().List(t.Context(), "")
	must(t, err)
	if now.Follows(was) || !now.Follows(now) {
		t.Errorf("%s, was %s", now, was)
	}
	for _, err := range s.Networks().Watch(t.Context(), was) {
		if !errors.Is(err, store.ErrCompacted) {
			t.Errorf("watch from another one's: %v", err)
		}
		break
	}
}
