// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/patchbay-net/patchbay/test/reftest"
)

// built are the programs that all labs of this process use.
type built struct{ plugins, patchbayd string }

// madeDir is the directory of the built programs, once it exists.
var madeDir string

// programs builds the programs, once.
var programs = sync.OnceValues(func() (built, error) {
	root, err := reftest.Root()
	if err != nil {
		return built{}, err
	}
	if madeDir, err = os.MkdirTemp("", "patchbay-docker"); err != nil {
		return built{}, err
	}
	b := built{plugins: filepath.Join(madeDir, "bin"), patchbayd: filepath.Join(madeDir, "patchbayd")}
	compile := exec.Command("go", "build", "-C", root, "-o", b.patchbayd, "./cmd/patchbayd")
	if out, err := compile.CombinedOutput(); err != nil {
		return b, fmt.Errorf("%v: %w: %s", compile.Args, err, out)
	}
	return b, errors.Join(os.Mkdir(b.plugins, 0o755), reftest.BuildOurs(b.plugins))
})

// Clean removes the programs built for labs. A TestMain calls it after the tests.
func Clean() {
	if madeDir != "" {
		os.RemoveAll(madeDir)
	}
}
