// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain also makes the test binary the program, for processes that the test starts.
func TestMain(m *testing.M) {
	if os.Getenv("PATCHBAYD_TEST") != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestHelp checks that every usual spelling works, and that a subcommand's own flags come before
// those of the service.
func TestHelp(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "Commands:\n  dhcp "},
		{"help", "Commands:\n  dhcp "},
		{"--help", "Commands:\n  dhcp "},
		{"-h", "Commands:\n  dhcp "},
		{"version", "patchbayd ("},
		{"--version", "patchbayd ("},
		{"-v", "patchbayd ("},
		{"help hosts rm", "Flags:\n      --force             even if containers are on it\n\nWith the flags of patchbayd hosts, too: --store,"},
		{"hosts rm --help", "Flags:\n      --force             even if containers are on it\n\nWith the flags of patchbayd hosts, too: --store,"},
	} {
		cmd := exec.Command("/proc/self/exe", strings.Fields(c.args)...)
		cmd.Env = append(os.Environ(), "PATCHBAYD_TEST=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("patchbayd %s: %v\n%s", c.args, err, out)
		}
	}
}
