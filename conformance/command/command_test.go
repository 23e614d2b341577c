// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){program: func() { os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr)) }})
}

func TestScripts(t *testing.T) {
	t.Setenv("GOTMPDIR", t.TempDir())
	testscript.Run(t, testscript.Params{Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true})
}
