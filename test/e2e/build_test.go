// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

const (
	workEnv      = "PATCHBAY_E2E_WORK"      // what the outer process built for this run
	pluginsEnv   = "PATCHBAY_E2E_PLUGINS"   // the directory under test
	referenceEnv = "PATCHBAY_E2E_REFERENCE" // the reference plugins
)

// ours reports whether the directory under test is our own build. Some tests check promises that
// only we make.
func ours() bool { return os.Getenv(pluginsEnv) == os.Getenv(workEnv)+"/bin" }

// plugins is the plugin directory under test.
func plugins() string { return os.Getenv(pluginsEnv) }

// reference is the directory of the reference plugins.
func reference() string { return os.Getenv(referenceEnv) }

// patchbay is our program.
func patchbay() string { return os.Getenv(workEnv) + "/bin/patchbay" }

// probeProgram is package probe as a static program.
func probeProgram() string { return os.Getenv(workEnv) + "/probe" }

// build makes everything that the tests run, and sets environment variables that name it
// for the inner processes.
func build() error {
	work, err := os.MkdirTemp("", "patchbay-e2e-")
	if err != nil {
		return err
	}
	os.Setenv(workEnv, work)
	if err := goBuild(work+"/probe", "./testdata/probe"); err != nil {
		return err
	}
	if plugins() == "" {
		os.Setenv(pluginsEnv, work+"/bin")
		if err := install(work+"/bin", ""); err != nil {
			return err
		}
	}
	if reference() == "" {
		dir, err := reftest.FindReference()
		if err != nil {
			return err
		}
		os.Setenv(referenceEnv, dir)
	}
	return nil
}

// goBuild builds a package as the plugins are shipped: static.
func goBuild(out, pkg string, flags ...string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, msg)
	}
	return nil
}

// install builds our program with the given linker flags and lets it install
// itself, as an operator would.
func install(dir, ldflags string) error {
	program := dir + ".build/patchbay"
	if err := goBuild(program, "../../cmd/patchbay", "-ldflags", ldflags); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if msg, err := exec.Command(program, "install", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("install into %s: %w\n%s", dir, err, msg)
	}
	return nil
}
