// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// built are the programs that all labs of this process use.
type built struct{ plugins, patchbayd string }

// madeDir is the directory of the built programs, once it exists.
var madeDir string

// programs builds the programs, once.
var programs = sync.OnceValues(func() (built, error) {
	patchbayd, err := reftest.Program("patchbayd")
	if err != nil {
		return built{}, err
	}
	if madeDir, err = os.MkdirTemp("", "patchbay-docker"); err != nil {
		return built{}, err
	}
	b := built{plugins: filepath.Join(madeDir, "bin"), patchbayd: patchbayd}
	return b, errors.Join(os.Mkdir(b.plugins, 0o755), reftest.BuildOurs(b.plugins))
})

// Clean removes the programs built for labs. A TestMain calls it after the tests.
func Clean() {
	if madeDir != "" {
		os.RemoveAll(madeDir)
	}
}
