// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package gate decides when the tests of real callers do not run.
package gate

import (
	"flag"
	"fmt"
	"os"
)

// Enter ends the process if the tests cannot run. Without PATCHBAY_E2E=1, which `make test` sets,
// it prints that the tests do not run. Before that, it prints the line by which `go test` prints
// "[no tests to run]" and not a bare ok. It also reports a request without root.
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
