// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// errStale means that an index is intact but describes another state of the directory.
var errStale = errors.New("index is out of date")

// few is the number of reservations up to which loadIndex writes no index file, because it reads so
// few files in less time. So an ADD to an empty pool, and the DEL after it, write none.
const few = 2

// loadIndex opens the index file. If the index does not match the directory, loadIndex builds a
// new one.
func (t *Tx) loadIndex() error {
	err := t.openIndex()
	if err == nil {
		return nil
	}
	t.noFile = errors.Is(err, fs.ErrNotExist)
	return t.rebuildIndex()
}

// openIndex opens the index file. With the error errStale it still returns the index, because
// rebuildIndex copies from it the marks of boots, which the files do not hold.
func (t *Tx) openIndex() error {
	if t.store.IndexDir == "" {
		return fs.ErrNotExist
	}
	if err := checkIndexDir(t.store.indexPath(t.dir)); err != nil {
		return err
	}
	flags := unix.O_RDWR
	if t.mode == ReadOnly {
		flags = unix.O_RDONLY
	}
	fd, err := openat(unix.AT_FDCWD, t.store.indexPath(t.dir), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	x, err := readIndex(descriptor(fd), sizeOf(fd))
	if err != nil {
		closeFD(fd)
		return err
	}
	t.index, t.indexFD = x, fd
	now, err := t.dir.version()
	if err != nil || x.head.clean != 1 || x.head.boot != t.store.Boot.mark() || x.head.dir != now {
		return errStale
	}
	return nil
}

// sizeOf returns the size of a regular file, or -1 for anything else.
func sizeOf(fd int) int64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1
	}
	return st.Size
}

// descriptor stores an index in a file. (An os.File would first register the file with Go's
// poller, which takes a plugin process longer than all its reads.)
type descriptor int

func (d descriptor) ReadAt(p []byte, off int64) (int, error) {
	n, err := unix.Pread(int(d), p, off)
	if err == nil && n < len(p) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (d descriptor) WriteAt(p []byte, off int64) (int, error) {
	n, err := unix.Pwrite(int(d), p, off)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// rebuildIndex builds the index from the files. If the directory changes during the scan,
// rebuildIndex scans again. If the directory keeps changing, rebuildIndex uses the index for this
// transaction only.
func (t *Tx) rebuildIndex() error {
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
	if slices.ContainsFunc(s.entries, t.outlived) {
		x.head.earlier = 1
	}
	t.owners, t.torn, t.changed, t.suspect = s.owners, s.torn, false, !s.still
	t.keep(x)
	return nil
}

// scan holds what was read from the directory.
type scan struct {
	entries []entry
	owners  map[netip.Addr]Holder
	torn    []string
	dir     version
	still   bool // no change of the directory was seen during the scan
}

func (t *Tx) scan() (*scan, error) {
	stamped := t.mode == ReadOnly || t.noFile || t.dir.stamp() == nil // the stamp is for the index file
	before, err := t.dir.version()
	if err != nil {
		return nil, err
	}
	names, err := t.dir.names()
	if err != nil {
		return nil, err
	}
	if t.noFile && t.needsFile(names) {
		t.noFile = false
		return t.scan() // with the stamp
	}
	s := &scan{owners: make(map[netip.Addr]Holder, len(names)), dir: before}
	for _, name := range names {
		if err := t.scanFile(s, name); err != nil {
			return nil, err
		}
	}
	after, err := t.dir.version()
	s.still = stamped && before == after
	return s, err
}

// needsFile reports whether keep will write an index file for the files with these names.
func (t *Tx) needsFile(names []string) bool {
	if t.mode == ReadOnly || t.store.IndexDir == "" {
		return false
	}
	n := 0
	for _, name := range names {
		if _, ok := addressOf(name); ok {
			n++
		}
		if n > few {
			return true
		}
	}
	return false
}

// addressOf parses the name of a reservation's file, in the form that we and the reference write.
func addressOf(name string) (a netip.Addr, ok bool) {
	a, err := netip.ParseAddr(name)
	return a, err == nil && a.String() == name && !a.Is4In6() && a.Zone() == ""
}

// scanFile adds the file to s if it is a reservation's.
func (t *Tx) scanFile(s *scan, name string) error {
	if strings.HasPrefix(name, tempPrefix) && t.mode != ReadOnly {
		return t.dir.unlink(name) // a process died and left this file; no process writes it, because we hold the lock
	}
	a, ok := addressOf(name)
	if !ok {
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
		e = t.withIndexed(e)
	}
	s.entries = append(s.entries, e)
	s.owners[a] = ownerOf(string(f.data))
	return nil
}

// keep makes x the index of this transaction. Unless noFile is set, keep also writes x to the index
// file for later transactions.
func (t *Tx) keep(x *index) {
	if t.indexFD >= 0 {
		closeFD(t.indexFD)
		t.indexFD = -1
	}
	t.index = x
	if t.mode == ReadOnly || t.store.IndexDir == "" || t.noFile {
		return
	}
	if fd, err := writeIndex(t.store.indexPath(t.dir), x); err == nil {
		t.indexFD, x.pages = fd, descriptor(fd)
	}
}

// writeIndex writes an index from memory to a file and returns the descriptor. Readers see
// either the old file or the complete new one.
func writeIndex(path string, x *index) (int, error) {
	if err := x.writeHeader(); err != nil {
		return -1, err
	}
	if err := checkIndexDir(path); err != nil {
		return -1, err
	}
	removeTemps(path)
	temp := fmt.Sprintf("%s.%d~", path, os.Getpid())
	fd, err := createIn(temp)
	if err != nil {
		return -1, err
	}
	_, err = descriptor(fd).WriteAt(x.pages.(memory), 0)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		closeFD(fd)
		return -1, errors.Join(err, os.Remove(temp))
	}
	return fd, nil
}

// removeTemps removes the temporary files of processes that were killed while they wrote this index.
func removeTemps(path string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return // the directory does not exist yet
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".") && strings.HasSuffix(e.Name(), "~") {
			os.Remove(filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
}

// checkIndexDir returns an error if other users can write to the directory of indexes or to
// its parent run directory.
func checkIndexDir(path string) error {
	run, dir := filepath.Split(filepath.Dir(path))
	return durable.CheckDir(filepath.Clean(run), dir)
}

// createIn creates a file. If the directory is missing, createIn makes it.
func createIn(path string) (int, error) {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := openat(unix.AT_FDCWD, path, flags, 0o600)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return -1, err
	}
	return openat(unix.AT_FDCWD, path, flags, 0o600)
}

// beginChange marks the index as dirty before the first change.
func (t *Tx) beginChange() {
	if t.changed {
		return
	}
	t.changed = true
	t.index.head.clean = 0
	if t.indexFD >= 0 && t.index.writeHeader() != nil {
		t.dropIndex()
	}
}

// commitIndex records the directory's current state in the index. If no reservation is left,
// commitIndex deletes the index. So a node without attachments keeps nothing of ours; an empty
// directory is read faster than an index.
func (t *Tx) commitIndex() {
	if t.noFile && t.changed && t.index.head.entries > few {
		t.noFile = false
		t.keep(t.index)
	}
	if t.indexFD < 0 || t.mode == ReadOnly {
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

// dropIndex removes an index that cannot be written, because a wrong index must not remain.
func (t *Tx) dropIndex() {
	t.suspect = true
	path := t.store.indexPath(t.dir)
	os.Remove(path)
	removeTemps(path)
}

// insert adds an entry, and makes room first if there is none. If insert fails, the index is not
// used again. The files are right in any case.
func (t *Tx) insert(e entry) {
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

func (t *Tx) growIndex() error {
	entries, err := t.index.all(nil)
	if err != nil {
		return err
	}
	x := buildIndex(entries)
	h := &t.index.head
	x.head.dir, x.head.boot, x.head.earlier = h.dir, h.boot, h.earlier
	t.keep(x) // the index stays marked as dirty, because a change is not finished
	return nil
}
