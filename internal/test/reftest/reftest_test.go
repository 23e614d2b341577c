// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package reftest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// names are the plugins of an ordinary node.
var names = [...]string{
	"bandwidth", "bridge", "firewall", "host-local", "loopback", "portmap", "ptp", "static", "tuning",
}

func TestReferenceIsTheRelease(t *testing.T) {
	dir := Plugins(t)
	for _, name := range names {
		out, err := exec.Command("go", "version", "-m", filepath.Join(dir, name)).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		if !strings.Contains(string(out), "containernetworking/plugins\t"+Version) {
			t.Errorf("%s is not of %s:\n%s", name, Version, out)
		}
	}
}

func TestOursHasEveryName(t *testing.T) {
	dir := Ours(t)
	program, err := os.Stat(filepath.Join(dir, "patchbay"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !os.SameFile(fi, program) {
			t.Errorf("%s does not lead to our program (%v)", name, err)
		}
	}
}
