// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// restore undoes an install: the programs in in.backup get their names in in.dir again,
// each by one rename, and then the names that only this program has go. If it is killed,
// the next restore completes it. The backup stays as it is.
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
		return nil, hinted(fmt.Errorf("restore into %s: it has other programs of these names: %s", in.dir, strings.Join(theirs, " ")), "--force replaces them")
	}
	done := &installed{Dir: in.dir}
	for _, name := range kept {
		if err := in.place(linkOrCopy, filepath.Join(in.backup, name), name, done, &done.Restored); err != nil {
			return nil, fmt.Errorf("restore: %w", err)
		}
	}
	restored := func(name string) bool { return sameFile(filepath.Join(in.backup, name), filepath.Join(in.dir, name)) }
	if err := in.drop(slices.DeleteFunc(slices.Clone(names), restored), done); err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	return done, durable.SyncDir(in.dir)
}

// remove is restore for a directory without a backup. A directory under one of the names
// is not ours: it stays, and the rest goes.
func (in *installer) remove(names []string) (*installed, error) {
	done := &installed{Dir: in.dir}
	if err := in.drop(names, done); err != nil {
		return nil, fmt.Errorf("remove: %w", err)
	}
	if len(in.folders) > 0 {
		return done, fmt.Errorf("remove: not removed, since it is a directory: %s", strings.Join(in.folders, " "))
	}
	return done, durable.SyncDir(in.dir)
}

// drop removes our names, and copies without a name.
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

// keptPrograms lists the programs in a backup directory.
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

// sameContent reports whether two files are equal; an unreadable file is not.
func sameContent(a, b string) bool {
	x, err := os.ReadFile(a)
	if err != nil {
		return false
	}
	y, err := os.ReadFile(b)
	return err == nil && bytes.Equal(x, y)
}
