// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	base := filepath.Join(dir, "base")
	must(CheckDir(base, "a", "b"))
	must(MakeDir(base, "a", "b"))
	for _, d := range []string{base, filepath.Join(base, "a"), filepath.Join(base, "a", "b")} {
		if fi, err := os.Stat(d); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, fi.Mode(), err)
		}
	}
	must(os.Mkdir(filepath.Join(dir, "outside"), 0o700))
	must(os.Symlink(filepath.Join(dir, "outside"), filepath.Join(base, "link")))
	must(os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	must(os.Mkdir(filepath.Join(base, "open"), 0o700))
	must(os.Chmod(filepath.Join(base, "open"), 0o777))
	for _, name := range []string{"link", "file", "open"} {
		if err := CheckDir(base, name); !errors.Is(err, ErrNotOurs) {
			t.Errorf("%s passes: %v", name, err)
		}
		if err := MakeDir(base, name, "below"); !errors.Is(err, ErrNotOurs) {
			t.Errorf("a directory below %s is made: %v", name, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "outside")); err != nil || len(left) > 0 {
		t.Errorf("something was made outside: %v, %v", left, err)
	}
	must(os.Symlink(base, filepath.Join(dir, "moved"))) // the operator's link, so it counts as ours
	must(CheckDir(filepath.Join(dir, "moved"), "a"))
}

func TestTrusted(t *testing.T) {
	if !trusted(0) || !trusted(uint32(os.Geteuid())) || trusted(uint32(os.Geteuid())+12345) {
		t.Error("root and we are trusted, and nobody else")
	}
}
