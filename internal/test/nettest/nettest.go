// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package nettest gives tests a private network. Main re-executes the test binary in new user (for
// an ordinary user), network and mount namespaces with an empty /run and /var/lib, so `go test
// ./...` needs no root and cannot touch the machine.
package nettest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/apart"
	"github.com/patchbay-net/patchbay/netns"
)

const inside = "PATCHBAY_NETTEST"

// Main is a package's TestMain: `func TestMain(m *testing.M) { nettest.Main(m) }`.
// Anything else with a Run can stand around m, such as testscript.Main.
func Main(m interface{ Run() int }) {
	switch {
	case os.Getenv(inside) == "":
		os.Exit(reexec("1"))
	case fuzzes() && os.Getenv(inside) != worker: // the workers would share mounts and namespaces
		os.Exit(reexec(worker, os.NewFile(3, "calls"), os.NewFile(4, "answers"), os.NewFile(5, "memory")))
	}
	if err := Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "nettest:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// worker is the value of inside in the process that a fuzz worker executes.
const worker = "worker"

// fuzzes reports whether this process is one of the workers of `go test -fuzz`. It has three files of the
// coordinator (internal/fuzz/sys_posix.go of Go).
func fuzzes() bool { return slices.Contains(os.Args, "-test.fuzzworker") }

func reexec(mark string, files ...*os.File) int {
	cmd := apart.Command(context.Background(), os.Args[1:], inside+"="+mark, apart.Flags())
	cmd.ExtraFiles = files
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "nettest: new namespaces:", err)
		if hint := apart.Hint(err, "/proc"); hint != "" {
			fmt.Fprintln(os.Stderr, "nettest: hint:", hint)
		}
		return 1
	}
	return 0
}

// Prepare runs in the new namespaces. It makes the mounts private, hides the machine's /run and /var/lib, and sets
// loopback up.
func Prepare() error {
	if err := unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
		}
	}
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return err
	}
	return loopbackUp()
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

// NewNS makes a named namespace for one test and returns its path.
func NewNS(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join("/run/netns", name)
	if err := netns.Create(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

// HasLink reports whether the namespace at path has a link.
func HasLink(t testing.TB, path, name string) (has bool) {
	t.Helper()
	ns, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	err = ns.Do(func() error {
		_, err := netlink.LinkByName(name)
		has = err == nil
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return has
}

// Feature is something that a kernel may lack. Probe tries the feature, and returns nil if the
// kernel has it.
type Feature struct {
	Name  string
	Probe func() error
}

// Need skips a test if the probe proves that the running kernel lacks a feature, and only then.
// scripts/test-kernel fails for a test that every kernel skips.
func Need(t testing.TB, f Feature) {
	t.Helper()
	if err := f.Probe(); err != nil {
		t.Skipf("patchbay-skip: %s: %s: %v", t.Name(), f.Name, err)
	}
}
