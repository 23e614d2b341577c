// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// writeSynced replaces a file whole, and waits until it is on the disk: it must
// be there after a loss of power. What a killed one left beside it is overwritten.
func writeSynced(path string, data []byte, mode os.FileMode) error {
	temp := path + "~"
	if err := writeNew(temp, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func writeNew(path string, data []byte, mode os.FileMode) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
