// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// modules are the directories of go.work: the library with its plugins and patchbay, the daemons, and tests that no
// release has.
var modules = []string{"daemons", "test"}

// Who imports the library gets the requirements of its module, used or not: Go raises his own versions of them. So it
// requires nothing of what only daemons and tests need.
func TestLibraryRequiresNoDaemonsModules(t *testing.T) {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []string{
		"k8s.io/", "go.etcd.io/", "google.golang.org/", "go.opentelemetry.io/", "github.com/prometheus/", "github.com/miekg/dns",
		"github.com/insomniacslk/dhcp", "github.com/containernetworking/", "github.com/docker/",
	} {
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(strings.TrimSpace(line), foreign) {
				t.Errorf("go.mod requires %s: only daemons/go.mod and test/go.mod may", strings.TrimSpace(line))
			}
		}
	}
}

// In the workspace, Go resolves an import of another module that go.mod does not require. A user has no workspace.
func TestLibraryImportsNoOtherModule(t *testing.T) {
	for _, p := range packages(t) {
		of := module + "/" + p.path()
		in := func(path string) int {
			return slices.IndexFunc(modules, func(m string) bool { return matches(module+"/"+m+"/...", path) })
		}
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if to := in(imp); to > in(of) {
				t.Errorf("%s imports %s, of the module %s", p.path(), imp, modules[to])
			}
		}
	}
}
