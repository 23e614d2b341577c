// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// A Dir that checks each directory only once still checks a missing or bad directory again.
func TestCheckOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	once, each := &Dir{Path: path, CheckOnce: true}, &Dir{Path: path}
	want := func(what string, d *Dir, bad bool) {
		t.Helper()
		if err := d.Guard(Attachments, "net"); errors.Is(err, durable.ErrNotOurs) != bad || !bad && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	want("missing", once, false)
	if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o777)); err != nil {
		t.Fatal(err)
	}
	want("made by somebody", once, true)
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	want("ours", once, false)
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	want("checked before", once, false)
	want("each time", each, true)
}
