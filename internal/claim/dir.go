// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package claim lets processes that work on one attachment wait for each other: locks of records, and claims. It
// knows the path and the owner of each record; only internal/record knows the rest. So a runtime that only execs
// plugins links neither netlink nor nftables.
package claim

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// Dir is a directory of records.
type Dir struct {
	Path string

	// CheckOnce means that each directory is checked only once, because the process ends soon. If Path
	// exists and only this process's user can write to it, no other user can make or replace what is below it.
	CheckOnce bool

	locks locks
}

// These directories are below Path, and have a subdirectory or file for each network: the records, and the
// positions up to which sweeps have read them.
const (
	Attachments = "attachments"
	Turns       = "turns"
)

// File returns the path of a record.
func (d *Dir) File(network string, o owner.Key, plugin string) string {
	return filepath.Join(d.Path, Attachments, network, string(o)+"."+plugin)
}

// Guard returns an error if another user could have made the directories or can write to them.
func (d *Dir) Guard(below ...string) error {
	if !d.CheckOnce {
		return durable.CheckDir(d.Path, below...)
	}
	base := d.checked("")
	if !base {
		if err := durable.CheckDir(d.Path); err != nil {
			return err
		}
		if base = VersionAt(d.Path) != (Version{}); base {
			d.check("")
		}
	}
	for i := range below {
		if err := d.guardOne(base, filepath.Join(below[:i]...), below[i]); err != nil {
			return err
		}
	}
	return nil
}

// guardOne checks one directory, unless it was checked before. If base is set, d.Path exists.
func (d *Dir) guardOne(base bool, parent, name string) error {
	path := filepath.Join(parent, name)
	if d.checked(path) {
		return nil
	}
	err := durable.CheckBelow(filepath.Join(d.Path, parent), name)
	if err == nil && base {
		d.check(path)
	}
	return err
}

// Place writes a file with place and keeps the file locked.
func (d *Dir) Place(place func(string, []byte) (int, error), path string, data []byte) (err error) {
	for range 10 { // another process may remove the directory with the network's last record
		var fd int
		fd, err = place(path, data)
		if err == nil {
			d.keepLock(path, fd)
		}
		// ext4 answers EPERM if the directory is removed between the lookup and the creation of the file.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EPERM) {
			return err
		}
		if err := durable.Mkdir(filepath.Dir(path)); err != nil {
			return fmt.Errorf("make directory of records: %w", err)
		}
	}
	return err
}

// TurnPath returns the path of the position in a network's records.
func (d *Dir) TurnPath(network string) string { return filepath.Join(d.Path, Turns, network) }

// RemoveNetwork removes the directory of a network without records, and the network's turns.
func (d *Dir) RemoveNetwork(network string) {
	if unix.Rmdir(filepath.Join(d.Path, Attachments, network)) == nil && d.Guard(Turns) == nil {
		_ = durable.Remove(d.TurnPath(network)) // the file is only a position for the next records
		RemoveEmpty(filepath.Join(d.Path, Turns))
	}
}

// RemoveEmpty removes a directory if it is empty. rmdir itself checks this, so no file of
// another process can be lost.
func RemoveEmpty(dir string) { _ = unix.Rmdir(dir) }
