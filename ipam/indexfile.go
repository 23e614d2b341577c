// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// errStale means that an index is sound and describes another state of the
// directory.
var errStale = errors.New("index is out of date")

// loadIndex opens the index, or builds it when it does not fit the directory.
func (t *fileTx) loadIndex() error {
	if t.openIndex() == nil {
		return nil
	}
	return t.rebuildIndex()
}

// openIndex opens the index file. On errStale the index is there all the same:
// a new one takes from it what only an index knows.
func (t *fileTx) openIndex() error {
	if t.store.IndexDir == "" {
		return fs.ErrNotExist
	}
	flags := os.O_RDWR
	if t.mode == ReadOnly {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(t.store.indexPath(t.dir), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return errors.Join(errCorrupt, err, f.Close())
	}
	x, err := readIndex(f, st.Size())
	if err != nil {
		return errors.Join(err, f.Close())
	}
	t.index, t.indexFile = x, f
	now, err := t.dir.version()
	if err != nil || x.head.clean != 1 || x.head.boot != t.store.Boot.mark() || x.head.dir != now {
		return errStale
	}
	return nil
}

// rebuildIndex makes the index from the files. A directory that does not hold
// still is scanned again, and in the end used as it was seen, once.
func (t *fileTx) rebuildIndex() error {
	if t.dir == nil {
		t.index = buildIndex(nil)
		return nil
	}
	var s *scan
	for try := 0; try < 3; try++ {
		var err error
		if s, err = t.scan(); err != nil {
			return fmt.Errorf("scan %s: %w", t.dir.path, err)
		}
		if s.still {
			break
		}
	}
	x := buildIndex(s.entries)
	x.head.dir, x.head.boot = s.dir, t.store.Boot.mark()
	if s.still {
		x.head.clean, x.head.exact = 1, 1
	}
	t.owners, t.torn, t.changed, t.suspect = s.owners, s.torn, false, !s.still
	t.keep(x)
	return nil
}

// scan is what a walk through the directory found.
type scan struct {
	entries []entry
	owners  map[netip.Addr]Owner
	torn    []string
	dir     version
	still   bool // nobody changed the directory meanwhile, as far as can be known
}

func (t *fileTx) scan() (*scan, error) {
	stamped := t.mode == ReadOnly || t.dir.stamp() == nil
	before, err := t.dir.version()
	if err != nil {
		return nil, err
	}
	names, err := t.dir.names()
	if err != nil {
		return nil, err
	}
	s := &scan{owners: make(map[netip.Addr]Owner, len(names)), dir: before}
	for _, name := range names {
		if err := t.scanFile(s, name); err != nil {
			return nil, err
		}
	}
	after, err := t.dir.version()
	s.still = stamped && before == after
	return s, err
}

// scanFile adds a file to s if it is named by an address, in the one spelling
// that we and the reference write.
func (t *fileTx) scanFile(s *scan, name string) error {
	if strings.HasPrefix(name, tempPrefix) && t.mode != ReadOnly {
		return t.dir.unlink(name) // of a process that died: we hold the lock
	}
	a, err := netip.ParseAddr(name)
	if err != nil || a.String() != name || a.Is4In6() || a.Zone() != "" {
		return nil
	}
	f, err := t.dir.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if f.torn() {
		s.torn = append(s.torn, name)
		return nil
	}
	e := entryOf(a, f)
	if t.index != nil {
		e = t.known(e)
	}
	s.entries = append(s.entries, e)
	s.owners[a] = ownerOf(string(f.data))
	return nil
}

// keep makes x the index of this transaction and of the next ones: in its file
// if there may be one, else in memory.
func (t *fileTx) keep(x *index) {
	if t.indexFile != nil {
		t.indexFile.Close()
		t.indexFile = nil
	}
	t.index = x
	if t.mode == ReadOnly || t.store.IndexDir == "" {
		return
	}
	if f, err := writeIndex(t.store.indexPath(t.dir), x); err == nil {
		t.indexFile, x.pages = f, f
	}
}

// writeIndex writes an index from memory to a file, in one step for anybody
// who looks, and returns the file open.
func writeIndex(path string, x *index) (*os.File, error) {
	if err := x.writeHeader(); err != nil {
		return nil, err
	}
	removeTemps(path)
	temp := fmt.Sprintf("%s.%d~", path, os.Getpid())
	f, err := createIn(temp)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(x.pages.(memory))
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(temp))
	}
	return f, nil
}

// removeTemps removes what processes left that were killed writing this index.
func removeTemps(path string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return // no directory yet
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".") && strings.HasSuffix(e.Name(), "~") {
			os.Remove(filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
}

// createIn makes a file, and its directory when that is missing.
func createIn(path string) (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_TRUNC | unix.O_NOFOLLOW
	f, err := os.OpenFile(path, flags, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, flags, 0o600)
}

// beginChange marks the index as unfinished before the first change.
func (t *fileTx) beginChange() {
	if t.changed {
		return
	}
	t.changed = true
	t.index.head.clean = 0
	if t.indexFile != nil && t.index.writeHeader() != nil {
		t.dropIndex()
	}
}

// commitIndex notes which state of the directory the index fits now. With the
// last reservation the index goes too: nothing of ours stays on a node without
// attachments, and an empty directory is read faster than an index.
func (t *fileTx) commitIndex() {
	if t.indexFile == nil || t.mode == ReadOnly {
		return
	}
	if t.index.head.entries == 0 {
		t.dropIndex()
		return
	}
	if !t.changed && !t.suspect {
		return
	}
	h := &t.index.head
	h.clean, h.exact = 0, 0
	if !t.suspect && t.dir.stamp() == nil {
		if now, err := t.dir.version(); err == nil {
			h.dir, h.clean = now, 1
		}
	}
	if t.index.writeHeader() != nil {
		t.dropIndex()
	}
}

// dropIndex removes an index that cannot be written: a wrong one must not stay.
func (t *fileTx) dropIndex() {
	t.suspect = true
	path := t.store.indexPath(t.dir)
	os.Remove(path)
	removeTemps(path)
}

// insert adds an entry and makes room for it. If that fails the index is not
// used again; the files are right.
func (t *fileTx) insert(e entry) {
	err := t.index.insert(e)
	if errors.Is(err, errNoRoom) {
		err = t.growIndex()
		if err == nil {
			err = t.index.insert(e)
		}
	}
	if err != nil {
		t.suspect = true
	}
}

func (t *fileTx) growIndex() error {
	entries, err := t.index.all()
	if err != nil {
		return err
	}
	x := buildIndex(entries)
	x.head.dir, x.head.boot = t.index.head.dir, t.index.head.boot
	t.keep(x) // not clean: a change is under way
	return nil
}
