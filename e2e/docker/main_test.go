// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/patchbay-net/patchbay/e2e/docker/lab"
)

// TestMain says when the tests were not run, by the line that `go test` knows.
func TestMain(m *testing.M) {
	flag.Parse()
	switch {
	case os.Getenv("PATCHBAY_E2E") != "1":
		fmt.Println("testing: warning: no tests to run")
		fmt.Println("e2e: not run without PATCHBAY_E2E=1 and root; `make test` runs them")
		os.Exit(0)
	case os.Geteuid() != 0:
		fmt.Fprintln(os.Stderr, "e2e: needs root")
		os.Exit(1)
	}
	if err := flag.Set("test.parallel", "3"); err != nil { // they mostly wait
		panic(err)
	}
	code := m.Run()
	lab.Clean()
	os.Exit(code)
}
