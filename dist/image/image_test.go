// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// TestWrite reads an archive back. The archive has only the programs, and starts the last one. The
// same programs with other file times make the same bytes.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	archive := func(out string) []byte {
		for _, program := range []string{first, second} {
			os.Remove(program) // the first time there is none
			if err := os.WriteFile(program, []byte("content of "+filepath.Base(program)), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := write(out, "example.org/patchbay:test", []string{first, second}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	a, b := archive(dir+"/a.tar"), archive(dir+"/b.tar")
	if !bytes.Equal(a, b) {
		t.Error("the same programs make different archives")
	}
	img, err := tarball.ImageFromPath(dir+"/a.tar", nil)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := img.ConfigFile(); err != nil || len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/usr/bin/second" || c.OS != "linux" {
		t.Errorf("configuration is %+v, %v", c, err)
	}
	files := mutate.Extract(img)
	defer files.Close() //nolint:errcheck // read to its end
	got := map[string]string{}
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			got[h.Name] = string(data)
		}
		if h.FileInfo().Mode().Perm() != 0o755 {
			t.Errorf("%s has mode %v", h.Name, h.FileInfo().Mode())
		}
	}
	if len(got) != 2 || got["usr/bin/first"] != "content of first" || got["usr/bin/second"] != "content of second" {
		t.Errorf("files are %q", got)
	}
	if err := write(dir+"/c.tar", "Not A Name", []string{first}); err == nil {
		t.Error("a wrong name is taken")
	}
	if err := write(dir+"/c.tar", "patchbay:test", []string{dir + "/none"}); err == nil {
		t.Error("a missing program is taken")
	}
}
