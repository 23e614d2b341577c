// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/patchbay-net/patchbay/cli"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/plugin/all"
)

func TestMain(m *testing.M) {
	main := func() { os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr)) }
	testscript.Main(m, map[string]func(){
		program: main, "recorder-1": main, "recorder-2": main, "recorder-3": main, // links to the program, whose names say what it is
		"patchbay": func() { os.Exit(cli.Main(all.Plugins())) }, // the runtime of the page and of the scripts
	})
}

func TestScripts(t *testing.T) {
	t.Setenv("GOTMPDIR", t.TempDir())
	all := draw.All(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true,
		Condition: func(cond string) (bool, error) {
			if cond != "all" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			return all, nil
		},
	})
}
