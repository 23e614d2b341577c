// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"testing"
)

// A Dir overwrites the record that it has read, and no newer one.
func TestWriteOver(t *testing.T) {
	dir := t.TempDir()
	one, two := New(dir), New(dir)
	defer one.Close()
	defer two.Close()
	want := sample("c1")
	take := func(s *Dir) *Record {
		t.Helper()
		r, err := s.ReadLocked("pods", want.Owner, "bridge")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	write := func(s *Dir, changed bool) {
		t.Helper()
		if err := s.WriteOver(want); errors.Is(err, ErrChanged) != changed || !changed && err != nil {
			t.Errorf("wrote over: %v, want ErrChanged: %v", err, changed)
		}
	}
	take(one)
	take(two)
	write(two, false)
	two.Close() // ends its session
	write(one, true)
	if take(one) == nil {
		t.Error("no record")
	}
	write(one, false)
	write(one, false)
	if err := one.Remove("pods", want.Owner, "bridge"); err != nil {
		t.Error(err)
	}
	write(one, false)
}
