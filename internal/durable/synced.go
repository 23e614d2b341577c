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

// WriteSynced replaces the file at path with data and waits until the data is on the disk. The
// file gets exactly this mode, whatever the umask is. A new name is synced to the disk too.
// For an existing name that is not necessary: after a power loss, the path has either the old
// file or the new file, and both are complete. Like Write, WriteSynced replaces symbolic
// links. WriteSynced closes the file before it gives the file its name, so that a program can
// be executed at once.
func WriteSynced(path string, data []byte, mode fs.FileMode) error {
	_, missing := os.Lstat(path)
	if err := replace(path, data, mode); err != nil || missing == nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteDurable works like WriteSynced, but always syncs the directory too. WriteDurable serves
// files whose old content must not return after a power loss.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	if err := replace(path, data, mode); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir syncs a directory. Afterwards, names that were added or removed survive a power
// loss.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// replace writes a temporary file next to path and renames it. replace overwrites the
// temporary file that a killed writer left.
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
