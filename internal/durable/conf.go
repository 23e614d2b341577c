// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ReadConf returns a configuration file that another program wrote. The file must be a regular
// file, or a symbolic link to one, of at most 1 MiB. ReadConf does not wait for pipes and does
// not open devices. If the file is missing, the error wraps fs.ErrNotExist.
func ReadConf(path string) ([]byte, error) {
	if err := regular(path, os.Stat); err != nil { // opening some devices has side effects
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	if err := regular(path, func(string) (fs.FileInfo, error) { return f.Stat() }); err != nil {
		return nil, err
	}
	return readBounded(path, f)
}

// ReadGiven works like ReadConf for a path that the user typed. ReadGiven also reads a pipe or
// a terminal to its end, at most 1 MiB.
func ReadGiven(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	return readBounded(path, f)
}

// ReadInput reads standard input to its end, at most 1 MiB.
func ReadInput(r io.Reader) ([]byte, error) { return readBounded("standard input", r) }

func readBounded(name string, r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err == nil && len(data) > maxSize {
		return nil, fmt.Errorf("%s holds more than 1 MiB, which no configuration does", name)
	}
	return data, err
}

func regular(path string, stat func(string) (fs.FileInfo, error)) error {
	fi, err := stat(path)
	if err != nil || fi.Mode().IsRegular() {
		return err
	}
	if fi.IsDir() {
		return &fs.PathError{Op: "read", Path: path, Err: unix.EISDIR}
	}
	return fmt.Errorf("%s is a device, pipe or socket: want a regular file", path)
}
