// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// builtFor returns the test's own program, as if it was built for an architecture.
func builtFor(t *testing.T, arch string) []byte {
	t.Helper()
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(data, []byte("\tGOARCH="+runtime.GOARCH+"\n"), []byte("\tGOARCH="+arch+"\n"))
}

// TestWrite reads an archive back. The archive has only the programs, and starts the last one. The
// same programs with other file times make the same bytes. The image is for the programs'
// architecture.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	arch := map[bool]string{true: "arm64", false: "amd64"}[runtime.GOARCH == "amd64"] // another one
	foreign := builtFor(t, arch)
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	archive := func(out string) []byte {
		for _, program := range []string{first, second} {
			os.Remove(program) // the first time there is none
			if err := os.WriteFile(program, append(slices.Clip(foreign), filepath.Base(program)...), 0o700); err != nil {
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
	if c, err := img.ConfigFile(); err != nil || len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/usr/bin/second" || c.OS != "linux" || c.Architecture != arch {
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
	if len(got) != 2 || got["usr/bin/first"] != string(foreign)+"first" || got["usr/bin/second"] != string(foreign)+"second" {
		t.Errorf("files are %q", slices.Collect(maps.Keys(got)))
	}
	if err := write(dir+"/c.tar", "patchbay:test", []string{first, os.Args[0]}); err == nil {
		t.Error("programs of two architectures are in one image")
	}
	if err := write(dir+"/c.tar", "Not A Name", []string{first}); err == nil {
		t.Error("a wrong name is taken")
	}
	if err := write(dir+"/c.tar", "patchbay:test", []string{dir + "/none"}); err == nil {
		t.Error("a missing program is taken")
	}
}

// TestWriteIndex reads an archive for two architectures back. Its index has one image for each, and the
// digest that was returned. The same programs make the same bytes.
func TestWriteIndex(t *testing.T) {
	dir := t.TempDir()
	var programs []string
	for _, arch := range []string{"amd64", "arm64"} {
		program := filepath.Join(dir, arch, "patchbayd")
		if err := errors.Join(os.Mkdir(filepath.Join(dir, arch), 0o755), os.WriteFile(program, builtFor(t, arch), 0o755)); err != nil {
			t.Fatal(err)
		}
		programs = append(programs, program)
	}
	digest, err := writeIndex(dir+"/a.tar", "example.org/patchbay:v1", programs)
	if err != nil {
		t.Fatal(err)
	}
	again, err := writeIndex(dir+"/b.tar", "example.org/patchbay:v1", programs)
	if err != nil || again != digest || !bytes.Equal(read(t, dir+"/a.tar"), read(t, dir+"/b.tar")) {
		t.Errorf("the same programs make other bytes: %v, %v, %v", digest, again, err)
	}
	list, err := layout.ImageIndexFromPath(unpack(t, dir+"/a.tar"))
	if err != nil {
		t.Fatal(err)
	}
	top, err := list.IndexManifest()
	if err != nil || len(top.Manifests) != 1 || top.Manifests[0].Digest != digest || top.Manifests[0].Annotations["io.containerd.image.name"] != "example.org/patchbay:v1" {
		t.Fatalf("index.json is %+v, %v", top, err)
	}
	index, err := list.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 2 || m.Manifests[0].Platform.Architecture != "amd64" || m.Manifests[1].Platform.Architecture != "arm64" {
		t.Errorf("the index is %+v, %v", m, err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// unpack unpacks an archive into a directory and returns the directory.
func unpack(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	for r := tar.NewReader(bytes.NewReader(read(t, path))); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.Mkdir(to, 0o755)
		} else if data, readErr := io.ReadAll(r); readErr == nil {
			err = os.WriteFile(to, data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
