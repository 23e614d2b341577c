// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// buildPrefix begins the name of the single copy of a build in a directory; the plugins
// are hard links to it. A hard link cannot dangle, so the copy of an older build can go
// when its last name goes, and a starting pod always finds its plugins.
const buildPrefix = ".patchbay-"

// installer puts one build into a directory.
type installer struct {
	dir, backup string
	builds      []string // existing copies of our builds
	foreign     []string // names of other programs
	folders     []string // names that are directories
	present     map[string]bool
}

// open creates and locks the directory and reads its content. One installer works in a
// directory at a time.
func (in *installer) open(ctx context.Context, names []string) (unlock func(), err error) {
	if err := in.make(); err != nil {
		return nil, err
	}
	unlock, err = durable.LockDir(ctx, in.dir)
	if err != nil {
		return nil, fmt.Errorf("install: %w", err)
	}
	if err := in.plan(names); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// make creates the directory if its parent exists: a typing error in a path must not
// become a tree. The runtimes' default directory is always allowed.
func (in *installer) make() error {
	err := os.Mkdir(in.dir, 0o755)
	switch {
	case errors.Is(err, fs.ErrNotExist) && filepath.Clean(in.dir) == defaultPluginDir:
		err = os.MkdirAll(in.dir, 0o755)
	case errors.Is(err, fs.ErrNotExist):
		return hinted(fmt.Errorf("install: there is no directory %s", filepath.Dir(in.dir)), "runtimes look in %s by default; mkdir -p makes another one", defaultPluginDir)
	case errors.Is(err, fs.ErrExist):
		return nil // plan reports a path that is no directory
	}
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	return nil
}

// plan sorts the names into ours, foreign and missing. It removes temporary files of
// killed installers.
func (in *installer) plan(names []string) error {
	entries, err := os.ReadDir(in.dir)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	in.present = make(map[string]bool)
	for _, e := range entries {
		in.present[e.Name()] = true
		switch {
		case !strings.HasPrefix(e.Name(), buildPrefix):
		case strings.HasSuffix(e.Name(), "~"):
			_ = os.Remove(filepath.Join(in.dir, e.Name())) // the next install tries again
		default:
			in.builds = append(in.builds, e.Name())
		}
	}
	for _, name := range names {
		if !in.present[name] || in.ours(name) {
			continue
		}
		if fi, err := os.Stat(filepath.Join(in.dir, name)); err == nil && fi.IsDir() {
			in.folders = append(in.folders, filepath.Join(in.dir, name))
			continue
		}
		in.foreign = append(in.foreign, name)
	}
	return nil
}

// ours reports whether a name is a link to a build of ours in the directory.
func (in *installer) ours(name string) bool {
	for _, b := range in.builds {
		if sameFile(filepath.Join(in.dir, b), filepath.Join(in.dir, name)) {
			return true
		}
	}
	return false
}

// install copies, links and then removes builds without a name.
func (in *installer) install(source string, names []string) (*installed, error) {
	if err := in.keep(); err != nil {
		return nil, err
	}
	build, err := copyBuild(source, in.dir)
	if err != nil {
		return nil, fmt.Errorf("install: %w", err)
	}
	done := &installed{Dir: in.dir, Build: strings.TrimPrefix(build, buildPrefix)}
	for _, name := range names {
		list := &done.New
		if in.present[name] {
			list = &done.Replaced
		}
		if err := in.place(os.Link, filepath.Join(in.dir, build), name, done, list); err != nil {
			return nil, fmt.Errorf("install: %w", err)
		}
	}
	in.forget(build)
	return done, durable.SyncDir(in.dir)
}

// keep backs up other vendors' programs. It never overwrites a file in the backup
// directory: that may be the only copy.
func (in *installer) keep() error {
	if in.backup == "" || len(in.foreign) == 0 {
		return nil
	}
	if err := os.MkdirAll(in.backup, 0o755); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	for _, name := range in.foreign {
		if err := in.keepOne(filepath.Join(in.dir, name), filepath.Join(in.backup, name)); err != nil {
			return err
		}
	}
	return durable.SyncDir(in.backup)
}

// linkOrCopy makes a hard link, or copies across file systems and for symbolic links.
func linkOrCopy(from, to string) error {
	fi, err := os.Lstat(from)
	if err != nil {
		return err
	}
	err = fs.ErrPermission
	if fi.Mode().IsRegular() {
		err = os.Link(from, to)
	}
	if errors.Is(err, unix.EXDEV) || errors.Is(err, fs.ErrPermission) {
		_, err = copyFile(from, to)
	}
	return err
}

// keepOne backs up one program.
func (in *installer) keepOne(from, to string) error {
	err := linkOrCopy(from, to)
	switch {
	case errors.Is(err, fs.ErrExist) && (sameFile(from, to) || sameContent(from, to)):
		return nil
	case errors.Is(err, fs.ErrExist):
		return hinted(fmt.Errorf("back up %s: %s exists", from, to), "name an empty directory")
	case err != nil:
		return fmt.Errorf("back up: %w", err)
	}
	return nil
}

// place gives a program a name in the directory by one rename, and adds the name to list.
// rename(2) does nothing when both are the same file, and would leave the temporary name.
func (in *installer) place(link func(from, to string) error, from, name string, done *installed, list *[]string) error {
	to, tmp := filepath.Join(in.dir, name), filepath.Join(in.dir, "."+name+"~")
	if sameFile(from, to) {
		done.Kept = append(done.Kept, name)
		return nil
	}
	if err := ignoreMissing(os.Remove(tmp)); err != nil {
		return err
	}
	err := link(from, tmp)
	if err == nil {
		err = os.Rename(tmp, to)
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(tmp)))
	}
	*list = append(*list, name)
	return nil
}

// forget removes older builds without a name. A process that runs one keeps it open.
func (in *installer) forget(current string) {
	for _, b := range in.builds {
		path := filepath.Join(in.dir, b)
		var st unix.Stat_t
		if b != current && unix.Lstat(path, &st) == nil && st.Nlink == 1 {
			_ = os.Remove(path) // the next install tries again
		}
	}
}

// copyBuild stores source in dir under its content's hash, durably, and returns the name.
// It keeps an existing complete copy.
func copyBuild(source, dir string) (string, error) {
	tmp := filepath.Join(dir, fmt.Sprintf("%s%d~", buildPrefix, os.Getpid()))
	sum, err := copyFile(source, tmp)
	if err != nil {
		return "", errors.Join(err, ignoreMissing(os.Remove(tmp)))
	}
	name := buildPrefix + sum[:12]
	err = os.Link(tmp, filepath.Join(dir, name))
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return name, errors.Join(err, os.Remove(tmp))
}

// copyFile makes a new file with a program's mode, syncs, and returns the hash of the content
// in hexadecimal digits.
func copyFile(from, to string) (sum string, err error) {
	src, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer src.Close() //nolint:errcheck // read only
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o755)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if sum, err = copyHashed(dst, src); err != nil {
		return "", err
	}
	return sum, errors.Join(dst.Chmod(0o755), dst.Sync())
}

// pieceSize is how much of a program is written at once. The kernel caches a file in pages
// as large as the pieces, up to 2 MiB: every start of a program that was written in pieces
// of 32 KiB, io.Copy's, takes 50 page faults and 0.3 ms more.
const pieceSize = 2 << 20

// copyHashed copies in large pieces and returns the hash of the content.
func copyHashed(dst io.Writer, src io.Reader) (sum string, err error) {
	hash := sha256.New()
	reader := struct{ io.Reader }{src} // a file's own copying uses smaller pieces
	if _, err := io.CopyBuffer(io.MultiWriter(dst, hash), reader, make([]byte, pieceSize)); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

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
