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

// Put writes relative to an open directory, by a temporary file of the caller's, and calls Before with the complete
// file while nothing leads to it.
func TestPut(t *testing.T) {
	for name, named := range map[string]bool{"nameless": false, "named": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			open, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close() //nolint:errcheck // a test
			var size int64
			before := func(fd int) error {
				var st unix.Stat_t
				_, missing := os.Lstat(filepath.Join(dir, "f"))
				size = -1
				if errors.Is(missing, fs.ErrNotExist) {
					size = 0
				}
				err := unix.Fstat(fd, &st)
				size += st.Size
				return err
			}
			how := How{New: true, Dir: int(open.Fd()), Temp: ".temp", Before: before, named: named}
			if err := Put("f", []byte("first"), how); err != nil || size != 5 {
				t.Errorf("%v, %d bytes", err, size)
			}
			if err := Put("f", []byte("second"), how); !errors.Is(err, fs.ErrExist) {
				t.Errorf("a second one: %v", err)
			}
			how.New, how.Before = false, nil
			if err := Put("f", []byte("third"), how); err != nil {
				t.Error(err)
			}
			how.Before = func(int) error { return errors.ErrUnsupported }
			if err := Put("f", []byte("fourth"), how); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("Before fails: %v", err)
			}
			if data, err := Read(filepath.Join(dir, "f")); err != nil || string(data) != "third" {
				t.Errorf("%q, %v", data, err)
			}
			onlyFile(t, filepath.Join(dir, "f"))
		})
	}
}
