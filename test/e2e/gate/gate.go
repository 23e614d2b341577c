// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package gate decides when the tests of real callers do not run.
package gate

import (
	"flag"
	"fmt"
	"os"
)

// Enter ends the process if the tests cannot run. `make e2e` sets PATCHBAY_E2E=1. Without it,
// Enter prints that the tests do not run, and first the line that makes `go test` add "[no tests to
// run]" to its ok. With it, Enter reports an error if the user is not root.
func Enter() {
	flag.Parse()
	switch {
	case os.Getenv("PATCHBAY_E2E") != "1":
		fmt.Println("testing: warning: no tests to run")
		fmt.Println("e2e: not run without PATCHBAY_E2E=1 and root; `make e2e` runs them")
		os.Exit(0)
	case os.Geteuid() != 0:
		fmt.Fprintf(os.Stderr, "e2e: needs root, runs as %d\n", os.Geteuid())
		os.Exit(1)
	}
}
