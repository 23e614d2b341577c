// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/atomicfile"
)

// restore is the way back: the programs in in.backup take their names in in.dir
// again, each by one rename, and then the names that only we have go. One that is
// killed is completed by the next. The backup stays as it is.
func (in *installer) restore(names []string, force bool) (*installed, error) {
	kept, err := keptPrograms(in.backup)
	if err != nil {
		return nil, err
	}
	var theirs []string
	for _, name := range kept {
		if in.present[name] && !in.ours(name) && !sameContent(filepath.Join(in.backup, name), filepath.Join(in.dir, name)) {
			theirs = append(theirs, name)
		}
	}
	if len(theirs) > 0 && !force {
		return nil, hinted(fmt.Errorf("restore into %s: programs of others are there: %s", in.dir, strings.Join(theirs, " ")), "--force replaces them")
	}
	done := &installed{Dir: in.dir}
	for _, name := range kept {
		if err := in.restoreOne(name, done); err != nil {
			return nil, fmt.Errorf("restore: %w", err)
		}
	}
	restored := func(name string) bool { return sameFile(filepath.Join(in.backup, name), filepath.Join(in.dir, name)) }
	if err := in.drop(slices.DeleteFunc(slices.Clone(names), restored), done); err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	return done, atomicfile.SyncDir(in.dir)
}

// remove is restore where nothing was there before. A directory under one of the names
// is somebody else's: it stays, and the rest goes.
func (in *installer) remove(names []string) (*installed, error) {
	done := &installed{Dir: in.dir}
	if err := in.drop(names, done); err != nil {
		return nil, fmt.Errorf("remove: %w", err)
	}
	if len(in.folders) > 0 {
		return done, fmt.Errorf("remove: left as it is, since it is a directory and not this program's: %s", strings.Join(in.folders, " "))
	}
	return done, atomicfile.SyncDir(in.dir)
}

// drop removes the names that are ours, and the copies that have none left.
func (in *installer) drop(names []string, done *installed) error {
	for _, name := range names {
		if !in.present[name] || !in.ours(name) {
			continue
		}
		if err := ignoreMissing(os.Remove(filepath.Join(in.dir, name))); err != nil {
			return err
		}
		done.Removed = append(done.Removed, name)
	}
	in.forget("")
	return nil
}

// keptPrograms lists what a backup directory holds.
func keptPrograms(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return nil, hinted(fmt.Errorf("restore: %s holds no program", dir), "it is the directory that --backup named")
	}
	return names, nil
}

// restoreOne links, or copies across file systems.
func (in *installer) restoreOne(name string, done *installed) error {
	from, to, tmp := filepath.Join(in.backup, name), filepath.Join(in.dir, name), filepath.Join(in.dir, "."+name+"~")
	if sameFile(from, to) {
		done.Kept = append(done.Kept, name)
		return nil
	}
	if err := ignoreMissing(os.Remove(tmp)); err != nil {
		return err
	}
	err := os.Link(from, tmp)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, fs.ErrPermission) {
		_, err = copyFile(from, tmp, false)
	}
	if err == nil {
		err = os.Rename(tmp, to)
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(tmp)))
	}
	done.Restored = append(done.Restored, name)
	return nil
}

// sameContent reports whether two files are equal; one that cannot be read is not.
func sameContent(a, b string) bool {
	x, err := os.ReadFile(a)
	if err != nil {
		return false
	}
	y, err := os.ReadFile(b)
	return err == nil && bytes.Equal(x, y)
}
