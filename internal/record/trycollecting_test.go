// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/internal/claim"
)

// A sweep does not wait for repair, and such a sweep does not block repair.
func TestTryCollecting(t *testing.T) {
	d := New(t.TempDir())
	if done, ok, err := d.TryCollecting(); err != nil || !ok {
		t.Fatal("without records:", ok, err)
	} else {
		done()
	}
	if err := os.Mkdir(filepath.Join(d.Path, claim.Attachments), 0o700); err != nil {
		t.Fatal(err)
	}
	repaired, err := d.Repairing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := d.TryCollecting(); ok || err != nil {
		t.Errorf("beside repair: %v %v", ok, err)
	}
	repaired()
	done, ok, err := d.TryCollecting()
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	done()
}
