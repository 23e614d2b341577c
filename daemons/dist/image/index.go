// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// printIndex makes the archive at path and prints the digest of its index.
func printIndex(path, tag string, programs []string) error {
	digest, err := writeIndex(path, tag, programs)
	if err == nil {
		_, err = fmt.Println(digest)
	}
	return err
}

// writeIndex makes the archive at path: an OCI layout with one index.
func writeIndex(path, tag string, programs []string) (digest v1.Hash, err error) {
	ref, err := name.NewTag(tag)
	if err != nil {
		return digest, err
	}
	images, err := index(programs)
	if err != nil {
		return digest, err
	}
	dir, err := os.MkdirTemp("", "patchbay-image-")
	if err != nil {
		return digest, err
	}
	defer os.RemoveAll(dir)
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return digest, err
	}
	// docker and podman read the first name, containerd the second.
	names := map[string]string{"org.opencontainers.image.ref.name": ref.Name(), "io.containerd.image.name": ref.Name()}
	if err := to.AppendIndex(images, layout.WithAnnotations(names)); err != nil {
		return digest, err
	}
	if digest, err = images.Digest(); err != nil {
		return digest, err
	}
	return digest, archive(path, dir)
}

// index is an index of one image an architecture.
func index(programs []string) (v1.ImageIndex, error) {
	archs, of, err := byArchitecture(programs)
	if err != nil {
		return nil, err
	}
	list := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range archs {
		img, err := image(of[arch], types.OCILayer)
		if err != nil {
			return nil, err
		}
		img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
		list = mutate.AppendManifests(list, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	return list, nil
}

// byArchitecture sorts programs by the architecture for which they were built, in the given order.
func byArchitecture(programs []string) (archs []string, of map[string][]string, err error) {
	of = map[string][]string{}
	for _, program := range programs {
		arch, err := architecture([]string{program})
		if err != nil {
			return nil, nil, err
		}
		if of[arch] == nil {
			archs = append(archs, arch)
		}
		of[arch] = append(of[arch], program)
	}
	return archs, of, nil
}

// archive writes the files of a directory to a tar file, sorted, without their times and owners.
func archive(path, dir string) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		to, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: to + "/", Mode: 0o755})
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return add(w, to, 0o644, data)
	})
	return errors.Join(err, w.Close())
}
