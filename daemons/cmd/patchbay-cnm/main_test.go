// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain also makes the test binary the program, for processes that the test starts.
func TestMain(m *testing.M) {
	if os.Getenv("PATCHBAY_CNM_TEST") != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestNames checks that the name of the program selects the plugin.
func TestNames(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, arg, env, want string }{
		{"cnm", "", "CNI_COMMAND=VERSION", `"supportedVersions"`},
		{"cnm-ipam", "", "CNI_COMMAND=VERSION", `"supportedVersions"`},
		{"cnm", "", "", "CNI cnm plugin (patchbay)"},
		{"patchbay-cnm", "--version", "", "CNI 0.1.0"},
		{"patchbay-cnm", "--help", "", "patchbay-cnm install DIR"},
		{"patchbay-cnm", "help", "", "patchbay-cnm install DIR"},
	} {
		link := filepath.Join(t.TempDir(), c.name)
		if err := os.Symlink(self, link); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(link, strings.Fields(c.arg)...)
		cmd.Env = []string{"PATCHBAY_CNM_TEST=1", c.env}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s %s: %v\n%s", c.name, c.arg, err, out)
		}
	}
}
