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

// ErrNotOurs means one of three things about a directory: it belongs to another user, other users
// can write to it, or it is a symbolic link or another kind of file.
var ErrNotOurs = errors.New("not a state directory of ours")

// CheckDir returns an error if another user can change base, or one of the nested directories
// that below names. It accepts missing directories. base itself may be a symbolic link that
// belongs to root or to us, because an operator may have made it.
func CheckDir(base string, below ...string) error {
	if err := checkLink(base); err != nil {
		return err
	}
	if err := check(base, unix.Stat); err != nil {
		return err
	}
	return CheckBelow(base, below...)
}

// CheckBelow works like CheckDir for a base that was checked before.
func CheckBelow(base string, below ...string) error {
	for _, name := range below {
		base = filepath.Join(base, name)
		if err := check(base, unix.Lstat); err != nil {
			return err
		}
	}
	return nil
}

// MakeDir works like CheckDir, and creates missing directories with mode 0700.
func MakeDir(base string, below ...string) error {
	if err := CheckDir(base, below...); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(append([]string{base}, below...)...), 0o700)
}

// Mkdir makes a directory with mode 0700, and its missing parents. Most often only dir itself is
// missing, so Mkdir looks at nothing first.
func Mkdir(dir string) error {
	if unix.Mkdir(dir, 0o700) == nil {
		return nil
	}
	return os.MkdirAll(dir, 0o700)
}

// WritableDir asks the kernel whether dir is writable. If dir does not exist, it checks the
// closest parent that exists.
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

// checkLink returns an error if base is another user's symbolic link.
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
	}
	if o := others(path, &st); o != nil {
		return fmt.Errorf("use %s: %w: %s", path, ErrNotOurs, o.who)
	}
	return nil
}

func trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

func trustedGroup(gid uint32) bool { return gid == 0 || int(gid) == os.Getegid() }

// missing returns nil if the error means that the file is missing, because a missing file is
// acceptable. Otherwise it returns the error.
func missing(path string, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return &fs.PathError{Op: "look at", Path: path, Err: err}
}
