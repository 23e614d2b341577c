// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteSynced replaces the file at path with data, with this mode whatever the umask, and
// waits until the data, and a new name, are on the disk. An existing name needs no fsync
// of the directory: after a power loss it is the old file or the new one, each whole.
// Links are replaced as by Write, and the file is closed before it gets its name, so that
// a program can be executed.
func WriteSynced(path string, data []byte, mode fs.FileMode) error {
	_, missing := os.Lstat(path)
	if err := replace(path, data, mode); err != nil || missing == nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteDurable is WriteSynced for a file whose old content must not come back after a
// power loss: it always syncs the directory too.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	if err := replace(path, data, mode); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir syncs a directory: new names in it, and removed ones, survive a power loss.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// replace writes a temporary file beside path, over the one that a killed writer left, and
// renames it.
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
