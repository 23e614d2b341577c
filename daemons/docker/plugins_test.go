// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
)

// installed has our programs for all tests, in a directory that ends with the namespaces of this process.
var installed = sync.OnceValues(func() (dir string, err error) {
	if dir := os.Getenv(reftest.OursEnv); dir != "" {
		return dir, nil
	}
	const at = "/run/installed"
	return at, reftest.BuildOurs(at)
})

// programs returns the directory of our plugins as an operator installs them.
func programs(t testing.TB) string {
	t.Helper()
	dir, err := installed()
	must(t, err)
	return dir
}

// linked has this test binary under the names of our plugins, so that they are found in this process.
var linked = sync.OnceValues(func() (dir string, err error) {
	const at = "/run/linked"
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(at, 0o755)
	}
	for _, p := range all.Plugins() {
		if err == nil {
			err = os.Symlink(self, filepath.Join(at, p.Name))
		}
	}
	return at, err
})

// plugins returns the directory of our plugins for the invoker of the test.
func plugins(t testing.TB) string {
	t.Helper()
	if draw.All(t) {
		return programs(t)
	}
	dir, err := linked()
	must(t, err)
	return dir
}

// invoker returns what calls our plugins. Programs take most of the time of a test. So a test calls our
// plugins in this process, unless it uses with, and executes all others. `make test-all` executes all of
// them.
func invoker(t testing.TB) invoke.Invoker {
	t.Helper()
	if draw.All(t) {
		return execer{}
	}
	return &plugin.Builtin{NewSession: session}
}

func session() *plugin.Session {
	s := plugin.NewSession(all.Plugins())
	s.Stderr = io.Discard
	return s
}
