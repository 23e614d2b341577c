// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Image writes the image of the Kubernetes agent as an archive for `ctr images import` and
// `docker load`, without a daemon or a registry:
//
//	go run ./daemons/dist/image OUT.tar NAME:TAG PROGRAM...
//
// The image has only the programs, in /usr/bin, and starts the last one. The same programs
// make the same bytes.
//
// With -oci, the programs may be for several architectures, and the archive has an OCI image for
// each, with the index that a registry gets. The digest of the index is printed.
package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	do, args := write, os.Args[1:]
	if len(args) > 0 && args[0] == "-oci" {
		do, args = printIndex, args[1:]
	}
	if len(args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: image [-oci] OUT.tar NAME:TAG PROGRAM...")
		os.Exit(2)
	}
	if err := do(args[0], args[1], args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "image: error: %v\n", err)
		os.Exit(1)
	}
}

// write makes the archive at path.
func write(path, tag string, programs []string) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	img, err := image(programs, types.DockerLayer)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, ref, img)
}

// image is the image with its one layer, of a media type.
func image(programs []string, kind types.MediaType) (v1.Image, error) {
	files, err := pack(programs)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }, tarball.WithMediaType(kind))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file.OS = "linux"
	if file.Architecture, err = architecture(programs); err != nil {
		return nil, err
	}
	file.Config.Entrypoint = []string{inImage(programs[len(programs)-1])}
	return mutate.ConfigFile(img, file)
}

// architecture returns the architecture for which all programs were built, which need not be this
// machine's.
func architecture(programs []string) (arch string, err error) {
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return "", err
		}
		i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "GOARCH" })
		if i < 0 || arch != "" && arch != info.Settings[i].Value {
			return "", fmt.Errorf("%s is not built for %q, as the programs before it", program, arch)
		}
		arch = info.Settings[i].Value
	}
	return arch, nil
}

// pack returns the layer: the programs, without the times and owners of their files.
func pack(programs []string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range []string{"usr/", "usr/bin/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for _, program := range programs {
		data, err := os.ReadFile(program)
		if err != nil {
			return nil, err
		}
		if err := add(w, inImage(program)[1:], 0o755, data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}

// add adds a file without a time and an owner.
func add(w *tar.Writer, name string, mode int64, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

func inImage(program string) string { return "/usr/bin/" + filepath.Base(program) }
