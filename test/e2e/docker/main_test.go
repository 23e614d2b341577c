// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"flag"
	"os"
	"testing"

	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
	"github.com/patchbay-net/patchbay/test/e2e/gate"
)

// TestMain removes the programs that all labs use.
func TestMain(m *testing.M) {
	gate.Enter()
	if err := flag.Set("test.parallel", "3"); err != nil { // they mostly wait
		panic(err)
	}
	code := m.Run()
	lab.Clean()
	os.Exit(code)
}
