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

// ErrNotOurs is wrapped when a directory belongs to another user, is writable by others,
// is a symbolic link, or is no directory at all.
var ErrNotOurs = errors.New("not a state directory of ours")

// CheckDir refuses base and the directories nested in it by name, if another user can change
// them. Missing ones pass. An operator may make base itself a symbolic link to another
// place; only links of root and our own are followed.
func CheckDir(base string, below ...string) error {
	if err := checkLink(base); err != nil {
		return err
	}
	if err := check(base, unix.Stat); err != nil {
		return err
	}
	path := base
	for _, name := range below {
		path = filepath.Join(path, name)
		if err := check(path, unix.Lstat); err != nil {
			return err
		}
	}
	return nil
}

// MakeDir is Check, and creates missing directories with mode 0700.
func MakeDir(base string, below ...string) error {
	if err := CheckDir(base, below...); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(append([]string{base}, below...)...), 0o700)
}

// WritableDir checks with the kernel whether dir or, if it does not exist, its closest
// existing parent is writable.
func WritableDir(dir string) error {
	for {
		err := unix.Access(dir, unix.W_OK|unix.X_OK)
		if err != unix.ENOENT || dir == filepath.Dir(dir) {
			if err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

// checkLink refuses a base that is another user's symbolic link.
func checkLink(path string) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK && !trusted(st.Uid) {
		return fmt.Errorf("use %s: %w: a symbolic link of user %d", path, ErrNotOurs, st.Uid)
	}
	return missing(path, err)
}

func check(path string, stat func(string, *unix.Stat_t) error) error {
	var st unix.Stat_t
	if err := stat(path, &st); err != nil {
		return missing(path, err)
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK:
		return fmt.Errorf("use %s: %w: a symbolic link", path, ErrNotOurs)
	case kind != unix.S_IFDIR:
		return fmt.Errorf("use %s: %w: no directory", path, ErrNotOurs)
	case !trusted(st.Uid):
		return fmt.Errorf("use %s: %w: it belongs to user %d", path, ErrNotOurs, st.Uid)
	case st.Mode&0o002 != 0:
		return fmt.Errorf("use %s: %w: everybody may write to it (mode %#o)", path, ErrNotOurs, st.Mode&0o7777)
	}
	return nil
}

func trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// missing returns nil for a missing file: there is nothing to refuse.
func missing(path string, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return &fs.PathError{Op: "look at", Path: path, Err: err}
}
