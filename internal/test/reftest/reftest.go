// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package reftest finds the plugin directories that tests and benchmarks run side by side: the
// reference plugins at a pinned release and ours, both of which it builds, and Debian's. No product
// links this package. It fetches nothing, because scripts/setup has fetched the reference's sources
// before any test runs. The machine of the second kernel has no Go toolchain. There, environment
// variables name the programs that another machine built (OursEnv and its neighbours; command stage
// lays them out).
package reftest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Version is the release of the reference plugins that we compare with;
// test/reference/go.mod pins it.
const Version = "v1.9.1"

// These environment variables name prepared directories. If they are set, nothing is built.
const (
	OursEnv      = "PATCHBAY_OURS_DIR"
	ReferenceEnv = "PATCHBAY_REFERENCE_DIR"
	DebianEnv    = "PATCHBAY_DEBIAN_DIR"
)

// debianDir is where Debian's containernetworking-plugins puts its programs.
const debianDir = "/usr/lib/cni"

// Plugins returns the directory of the reference plugins of [Version]. It fails
// the test if they do not compile.
func Plugins(tb testing.TB) string {
	tb.Helper()
	dir, err := FindReference()
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// Debian returns the directory of Debian's containernetworking-plugins. It
// fails the test when scripts/setup has not installed the package.
func Debian(tb testing.TB) string {
	tb.Helper()
	dir, err := FindDebian()
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// Ours returns a directory that lives as long as the test and holds one copy of
// our program, built from the working tree, with a link for every plugin.
func Ours(tb testing.TB) string {
	tb.Helper()
	if dir := os.Getenv(OursEnv); dir != "" {
		return dir
	}
	dir := tb.TempDir()
	if err := BuildOurs(dir); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// Witness returns the path of the program of test/witness. scripts/setup e2e has built it, or the first call does.
func Witness(tb testing.TB) string {
	tb.Helper()
	return pinned(tb, "test/witness", "witness")
}

// Etcdutl returns the path of etcd's program for the files of a store, as Witness does.
func Etcdutl(tb testing.TB) string {
	tb.Helper()
	return pinned(tb, "test/labs/etcdutl", "etcdutl")
}

// pinned builds what the go.mod of a directory pins, if nobody has, with the flags of scripts/setup.
func pinned(tb testing.TB, dir, program string) string {
	tb.Helper()
	out, err := build(filepath.Base(dir), "scripts/pinned", dir, "-trimpath", "-ldflags=-w")
	if err != nil {
		tb.Fatalf("build %s (run scripts/setup e2e): %v", dir, err)
	}
	return filepath.Join(out, program)
}

// Lab returns the path of a program in test/labs.
func Lab(tb testing.TB, name string) string {
	tb.Helper()
	root, err := Root()
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(root, "test/labs", name)
}

// FindReference returns the directory of the reference plugins of [Version]. The first call on a
// machine compiles them, which takes most of a minute. scripts/pinned creates the directory by a
// rename, so an existing directory is complete.
func FindReference() (string, error) {
	if dir := os.Getenv(ReferenceEnv); dir != "" {
		return dir, nil
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "reference", Version)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if _, err := build("reference", "scripts/pinned", "test/reference"); err != nil {
		return "", fmt.Errorf("build the reference plugins %s (scripts/setup fetches their sources): %w", Version, err)
	}
	return dir, nil
}

// FindDebian returns Debian's plugin directory, or an error that names the
// package to install.
func FindDebian() (string, error) {
	if dir := os.Getenv(DebianEnv); dir != "" {
		return dir, nil
	}
	if _, err := os.Stat(filepath.Join(debianDir, "bridge")); err != nil {
		return "", fmt.Errorf("find Debian's containernetworking-plugins (run scripts/setup): %w", err)
	}
	return debianDir, nil
}

// BuildOurs builds cmd/patchbay as it is released (static, trimmed, stripped)
// and lets it install itself into dir with every plugin's name, as an operator
// does.
func BuildOurs(dir string) error {
	built, err := Program("patchbay")
	if err != nil {
		return err
	}
	if err := run(exec.Command(built, "install", dir)); err != nil {
		return fmt.Errorf("install into %s: %w", dir, err)
	}
	return nil
}

// ProgramsEnv names the directory of our programs where scripts/unit has built them before any test.
const ProgramsEnv = "PATCHBAY_PROGRAMS_DIR"

// Program builds one of our programs as it is released (scripts/build), and returns its path. The
// next build of a changed tree replaces the file. A caller that must keep it makes a copy.
func Program(name string) (string, error) {
	if dir := os.Getenv(ProgramsEnv); dir != "" {
		return filepath.Join(dir, name), nil
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "ours")
	if _, err := build("ours", "scripts/build", dir, name); err != nil {
		return "", fmt.Errorf("build cmd/%s: %w", name, err)
	}
	return filepath.Join(dir, name), nil
}

// Daemon returns the path of our patchbayd. It fails the test if that does not compile.
func Daemon(tb testing.TB) string {
	tb.Helper()
	path, err := Program("patchbayd")
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Root returns the top directory of this repository: the closest parent of the
// working directory that holds a go.work.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("find repository: no go.work in any parent directory")
		}
	}
}

func cacheDir() (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	dir := filepath.Join(user, "patchbay")
	return dir, os.MkdirAll(dir, 0o755)
}

// build runs a script of the repository from its top directory, and returns what the script prints. Meanwhile other
// test processes do not build what has the same name.
func build(name, script string, args ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(cache, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	cmd := exec.Command(filepath.Join(root, script), args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(failed.Stderr))
	}
	return strings.TrimSpace(string(out)), err
}

// lock keeps the other test processes of `go test ./...` from building the same program at
// the same time.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil //nolint:errcheck // releases the lock
}

// run runs cmd and puts its output into the error.
func run(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}
