// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// fetch matches commands that fetch what is not on the machine.
var fetch = regexp.MustCompile(`"go",\s*"(install|get|mod)"|\bgo (install|get|mod download)\b|\bapt(-get)? |\b(curl|wget|git clone) (-\S+ )*https?:`)

// scripts/setup fetches everything that tests need before any test runs. A test has no network, and
// a user would not see that a slow test is only downloading.
func TestNoFetchesInTests(t *testing.T) {
	may := []string{
		"scripts/setup", "scripts/fresh",
		"scripts/lint",                    // its part of setup
		"scripts/tag", "scripts/rehearse", // of a release
		"test/labs/vm/vm",             // its part of setup
		"test/labs/kubetest/kubetest", // its part of setup
		"test/labs/release/release",   // its part of setup
		"scripts/apt-of",              // what the last three fetch with
		"scripts/try-package",         // rpm, in a Debian that is thrown away
		"scripts/scoreboard",          // plugins of others
		".ci/forge",                   // what a runner lacks for scripts/fresh
		"repo_fetch_test.go",
	}
	for _, path := range sources(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if found := fetch.FindString(line); found != "" && !slices.Contains(may, path) {
				t.Errorf("%s:%d: %q: scripts/setup fetches what tests need", path, i+1, found)
			}
		}
	}
}

// A clone needs no files outside of it: a relative path does not leave it, and an absolute one begins with a directory
// that every machine has, or that the file itself makes or serves.
func TestNothingOutside(t *testing.T) {
	relative := regexp.MustCompile(`(\.\./)+`)
	absolute := regexp.MustCompile("(?m)(?:^|[\\s'`(=:,])(/[a-z][a-z0-9.-]*)/")
	opened := regexp.MustCompile(`\b(?:os|filepath|durable)\.\w+\("(/[a-z][a-z0-9.-]*)`)
	leaves := []string{ // such a path must be refused
		"daemons/docker/hostile_test.go", "internal/nl/nl_test.go", "internal/owner/owner_test.go", "test/refuse/master_test.go",
	}
	everywhere := []string{"/bin", "/dev", "/etc", "/lib", "/mnt", "/opt", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var"}
	own := map[string][]string{
		"cli/testdata/run.txtar": {"/no"}, "internal/policy/mirror/damage_test.go": {"/node"}, "test/e2e/hosts/networks_test.go": {"/patchbay"},
		"docs/plugins/cnm.md": {"/containers", "/networks"}, "docs/hosts.md": {"/patchbay"}, "docs/beside.md": {"/patchbay"}, // of a server
		// of another root directory
		"scripts/fresh": {"/src", "/release"}, "scripts/try-package": {"/src", "/release"}, "scripts/release-test": {"/release"}, "scripts/test-kernel": {"/work"},
		"test/labs/podman/podman": {"/home"}, "test/labs/release/release": {"/home"}, "test/labs/vm/vm": {"/work"},
	}
	ofOthers := func(page string) bool { return strings.HasPrefix(page, "docs/scoreboard/") } // what programs of others print
	for _, path := range append(sources(t), slices.DeleteFunc(pages(t), ofOthers)...) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text, begins := string(data), absolute
		if filepath.Ext(path) == ".go" {
			begins = opened // other strings may be keys and requests
		}
		for _, up := range relative.FindAllString(text, -1) {
			if len(up)/3 > strings.Count(path, "/") && !slices.Contains(leaves, path) {
				t.Errorf("%s: %s leads out of the clone", path, up)
			}
		}
		for _, m := range begins.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(everywhere, m[1]) && !slices.Contains(own[path], m[1]) {
				t.Errorf("%s: not every machine has %s", path, m[1])
			}
		}
	}
}

// TestPinnedReference: scripts/setup builds the release that tests ask for.
func TestPinnedReference(t *testing.T) {
	text, err := os.ReadFile("test/reference/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "require github.com/containernetworking/plugins " + reftest.Version; !strings.Contains(string(text), want+" ") {
		t.Errorf("test/reference/go.mod does not %q, which reftest.Version says", want)
	}
}

// pages are the texts for people.
func pages(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".md"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// sources are the files of the repository that programs read: Go, scripts and their tests.
func sources(t *testing.T) []string {
	t.Helper()
	files := goFiles(t)
	for _, dir := range []string{".ci", "scripts", "test", "cli/testdata"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() && !slices.Contains([]string{".go", ".md", ".mod", ".sum"}, filepath.Ext(path)) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return append(files, "Makefile")
}
