// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteSynced makes path hold data, with this mode whatever the umask, and waits
// until the data is on the disk, and a new name too. A name that was there needs
// no fsync of the directory: after a power loss it is the old file or the new
// one, each whole. Links are replaced as Write does, and the file is closed
// before it has the name: one that is a program can be run.
func WriteSynced(path string, data []byte, mode fs.FileMode) error {
	_, missing := os.Lstat(path)
	if err := replace(path, data, mode); err != nil || missing == nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteDurable is WriteSynced for what must not be the old file after a power
// loss: it waits for the directory in any case.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	if err := replace(path, data, mode); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir puts the names in a directory, and that others are gone, on the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// replace writes beside path, where what a killed one left is overwritten, and
// renames.
func replace(path string, data []byte, mode fs.FileMode) error {
	temp := path + suffix
	err := remove(temp)
	if err == nil {
		err = writeNew(temp, data, mode)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, remove(temp)))
	}
	return nil
}

func writeNew(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}
