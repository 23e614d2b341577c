// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package gate says when the tests of real callers are not run.
package gate

import (
	"flag"
	"fmt"
	"os"
)

// Enter ends the process where the tests cannot run. Who did not ask for them
// (PATCHBAY_E2E=1, `make test`) is told so, first by the line by which `go test`
// prints "[no tests to run]" instead of a bare ok; who asked and is not root, too.
func Enter() {
	flag.Parse()
	switch {
	case os.Getenv("PATCHBAY_E2E") != "1":
		fmt.Println("testing: warning: no tests to run")
		fmt.Println("e2e: not run without PATCHBAY_E2E=1 and root; `make test` runs them")
		os.Exit(0)
	case os.Geteuid() != 0:
		fmt.Fprintf(os.Stderr, "e2e: needs root, runs as %d\n", os.Geteuid())
		os.Exit(1)
	}
}
