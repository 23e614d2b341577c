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

// ErrForeign means that the caller does not own the file, so Update does not replace it.
var ErrForeign = errors.New("it is another program's")

// Update works like WriteDurable for a file that other programs read and watch, and may write.
// It writes only if the content differs, and replaces only a file that is ours. It makes the
// directory if necessary. changed reports whether it wrote the file.
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
