// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A file that already has the bytes keeps its inode. A file of another program keeps its content.
func TestUpdate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "file")
	ours := func(old []byte) bool { return bytes.HasPrefix(old, []byte("ours")) }
	for _, step := range []struct {
		data    string
		changed bool
	}{{"ours 1", true}, {"ours 1", false}, {"ours 2", true}} {
		if changed, err := Update(path, []byte(step.data), 0o644, ours); err != nil || changed != step.changed {
			t.Errorf("%q: %v, %v", step.data, changed, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != step.data {
			t.Errorf("%q: %q, %v", step.data, got, err)
		}
	}
	if err := os.WriteFile(path, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := Update(path, []byte("ours 2"), 0o644, ours); changed || !errors.Is(err, ErrForeign) {
		t.Errorf("%v, %v", changed, err)
	}
	if got, _ := os.ReadFile(path); string(got) != "theirs" {
		t.Errorf("%q", got)
	}
}
