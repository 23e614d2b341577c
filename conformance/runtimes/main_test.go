// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"os"
	"testing"
)

// TestMain makes the test binary a recorder under such a name, and the runtime of wrong_test.go with an argument.
func TestMain(m *testing.M) {
	switch {
	case Recorder(os.Args[0]):
		os.Exit(Record())
	case len(os.Args) == 4 && os.Args[1] == "runtime":
		os.Exit(runtimeWith(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}
