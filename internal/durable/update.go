// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrForeign is wrapped when a file is not the caller's to replace.
var ErrForeign = errors.New("it is another program's")

// Update is WriteDurable for a file that other programs read and watch, and may write: it
// writes only bytes that differ, and replaces only a file that is ours. Update makes the
// directory, and reports whether it wrote.
func Update(path string, data []byte, mode fs.FileMode, ours func(old []byte) bool) (changed bool, err error) {
	old, err := ReadConf(path)
	switch {
	case err == nil && bytes.Equal(old, data):
		return false, nil
	case err == nil && !ours(old):
		return false, fmt.Errorf("write %s: %w", path, ErrForeign)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	return true, WriteDurable(path, data, mode)
}
