// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Image writes the image of the Kubernetes agent as an archive for `ctr images import` and
// `docker load`, without a daemon or a registry:
//
//	go run ./daemons/dist/image OUT.tar NAME:TAG PROGRAM...
//
// The image has only the programs, in /usr/bin, and starts the last one. The same programs
// make the same bytes.
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
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: image OUT.tar NAME:TAG PROGRAM...")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
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
	img, err := image(programs)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, ref, img)
}

// image is the image with its one layer.
func image(programs []string) (v1.Image, error) {
	files, err := pack(programs)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil })
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
		h := &tar.Header{Typeflag: tar.TypeReg, Name: inImage(program)[1:], Mode: 0o755, Size: int64(len(data))}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}

func inImage(program string) string { return "/usr/bin/" + filepath.Base(program) }
