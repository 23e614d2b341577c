// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command stage lays out what tests need on a machine that cannot build: our program, the
// reference plugins and Debian's, without debug information.
//
//	go run ./internal/test/reftest/stage DIR      makes DIR/patchbay, DIR/reference, DIR/debian
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: stage DIR")
		os.Exit(2)
	}
	if err := stage(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(1)
	}
}

func stage(dir string) error {
	ours, err := reftest.Program("patchbay")
	if err != nil {
		return err
	}
	reference, err := reftest.FindReference()
	if err != nil {
		return err
	}
	debian, err := reftest.FindDebian()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(dir, "patchbay"), ours); err != nil {
		return err
	}
	if err := copyPlugins(filepath.Join(dir, "reference"), reference); err != nil {
		return err
	}
	return copyPlugins(filepath.Join(dir, "debian"), debian)
}

// copyPlugins copies a plugin directory but dhcp, which is large and needs a
// server.
func copyPlugins(dst, src string) error {
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	files, err := os.ReadDir(src)
	if err != nil {
		return err
	}
	for _, f := range files {
		if !f.Type().IsRegular() || f.Name() == "dhcp" {
			continue
		}
		if err := strip(filepath.Join(dst, f.Name()), filepath.Join(src, f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// strip copies a program, smaller where binutils are installed.
func strip(dst, src string) error {
	if exec.Command("strip", "-o", dst, src).Run() == nil {
		return nil
	}
	return copyFile(dst, src)
}

func copyFile(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close() //nolint:errcheck // the copy failed
		return err
	}
	return out.Close()
}
