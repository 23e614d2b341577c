// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSyncedMode(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	path := filepath.Join(t.TempDir(), "f")
	for _, mode := range []fs.FileMode{0o644, 0o755, 0o600} {
		if err := WriteSynced(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode() != mode {
			t.Errorf("%v, %v; want %v", fi.Mode(), err, mode)
		}
	}
}

// The file is closed before it gets its name. A file that is open for writing cannot be executed
// (ETXTBSY).
func TestSyncedProgramRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := WriteSynced(path, program, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(path).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// A failed WriteSynced leaves the old file, and no temporary file beside it.
func TestSyncedFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"synced": WriteSynced, "durable": WriteDurable} {
		if err := write(path, []byte("text"), 0o600); err == nil {
			t.Errorf("%s: a directory was replaced", name)
		}
		if _, err := os.Lstat(path + suffix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: beside it: %v", name, err)
		}
		if err := write(filepath.Join(path, "absent", "f"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: without a directory: %v", name, err)
		}
	}
	if err := SyncDir(filepath.Join(path, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sync a missing directory: %v", err)
	}
}
