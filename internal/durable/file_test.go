// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// writers returns every way to write a file, by name.
func writers() map[string]func(string, []byte) error {
	return map[string]func(string, []byte) error{
		"nameless": Write, "named": named, "locked": locked,
		"synced":  func(path string, data []byte) error { return WriteSynced(path, data, 0o600) },
		"durable": func(path string, data []byte) error { return WriteDurable(path, data, 0o600) },
	}
}

func TestWriteReplaceRemove(t *testing.T) {
	for name, write := range writers() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			for _, content := range []string{"one", "", "three"} {
				if err := write(path, []byte(content)); err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(path); err != nil || string(got) != content {
					t.Fatalf("%q, %v; want %q", got, err, content)
				}
			}
			if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
				t.Errorf("mode %v, %v", fi.Mode(), err)
			}
			if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
				t.Errorf("beside it: %v, %v", left, err)
			}
		})
	}
}

func TestLinkIsReplacedNotFollowed(t *testing.T) {
	for name, write := range writers() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			victim, path := filepath.Join(dir, "victim"), filepath.Join(dir, "f")
			for _, planted := range []string{path, path + suffix} {
				if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(victim, planted); err != nil {
					t.Fatal(err)
				}
				if err := write(path, []byte("ours")); err != nil {
					t.Fatal(err)
				}
				if got, _ := os.ReadFile(victim); string(got) != "precious" {
					t.Errorf("a link at %s was followed: %q", planted, got)
				}
				if err := Remove(path); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestRemoveTakesWhatAKilledWriterLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path+suffix, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(path + suffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// Read opens only regular files up to the size limit, and does not wait for a pipe's writer.
func TestReadsFilesOnly(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, make := range map[string]func(string) error{
		"link": func(p string) error { return os.Symlink("/etc/hostname", p) },
		"pipe": func(p string) error { return unix.Mkfifo(p, 0o600) },
		"dir":  func(p string) error { return os.Mkdir(p, 0o700) },
		"huge": func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, 1<<40)) },
	} {
		if err := make(path(name)); err != nil {
			t.Fatal(err)
		}
		if data, err := Read(path(name)); !errors.Is(err, ErrIrregular) {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
	if _, err := Read(path("absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if err := Write(path("ours"), []byte("text")); err != nil {
		t.Fatal(err)
	}
	if data, err := Read(path("ours")); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestMissingDirectory(t *testing.T) {
	if err := Write(filepath.Join(t.TempDir(), "absent", "f"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func named(path string, data []byte) error { return closed(place(path, data, How{named: true})) }

func locked(path string, data []byte) error { return closed(WriteLocked(path, data)) }

func closed(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// CreateLocked and its variants do not replace an existing file, with or without
// O_TMPFILE.
func TestCreate(t *testing.T) {
	for name, create := range map[string]func(string, []byte) (int, error){
		"nameless": CreateLocked,
		"named":    func(path string, data []byte) (int, error) { return place(path, data, How{New: true, named: true}) },
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "f")
		first, second := closed(create(path, []byte("first"))), closed(create(path, []byte("second")))
		data, err := Read(path)
		if left, _ := os.ReadDir(dir); first != nil || !errors.Is(second, fs.ErrExist) || err != nil || string(data) != "first" || len(left) != 1 {
			t.Errorf("%s: %v, then %v: %q, %v; %v", name, first, second, data, err, left)
		}
	}
}

// While a process holds the lock of WriteLocked, another one opens the file by its name and finds
// it locked.
func TestWriteLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	fd, err := WriteLocked(path, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other) //nolint:errcheck // a test
	if err := unix.Flock(other, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("lock of a file that is being kept: %v", err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(other, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("lock of a file that nobody keeps: %v", err)
	}
}
