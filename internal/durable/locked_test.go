// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"path/filepath"
	"testing"
)

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if Locked(path) {
		t.Error("a missing file is locked")
	}
	unlock, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if !Locked(path) {
		t.Error("a lock is not seen")
	}
	unlock()
	for range 2 { // looking leaves nothing
		if Locked(path) {
			t.Error("a free file is locked")
		}
	}
}
