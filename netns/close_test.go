// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"testing"
)

// A second Close does not close the file that has the number by now.
func TestCloseTwice(t *testing.T) {
	ns, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	number := ns.Fd()
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ns.Close(); err != nil || ns.Fd() == number {
		t.Errorf("closed again: %v, with the descriptor %d", err, ns.Fd())
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	if err := ns.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Stat(); err != nil {
		t.Errorf("another file was closed: %v", err)
	}
}
