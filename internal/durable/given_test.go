// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadConf(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := unix.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"most": maxSize, "more": maxSize + 1} {
		if err := os.WriteFile(at(name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("most", at("link")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		at("most"): "", at("link"): "", at("more"): "more than 1 MiB", at("fifo"): "want a regular file",
		"/dev/zero": "want a regular file", dir: "is a directory", at("none"): "no such file",
	} {
		data, err := ReadConf(path)
		if want == "" && (err != nil || len(data) != maxSize) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %d bytes, %v, want %q", path, len(data), err, want)
		}
	}
}

// TestReadGiven reads a pipe that the user names, up to the limit.
func TestReadGiven(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { _ = os.WriteFile(fifo, []byte("{}"), 0o600) }()
	if data, err := ReadGiven(fifo); err != nil || string(data) != "{}" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := ReadGiven("/dev/zero"); err == nil {
		t.Error("/dev/zero was read")
	}
}
