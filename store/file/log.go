// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/typed"
)

// change is a file of the log.
type change struct {
	Table string `json:"table"`
	Key   string `json:"key"`
	Gone  bool   `json:"gone,omitempty"`
	row
}

// errTorn reports a file that a crash of the machine cut short.
var errTorn = errors.New("damaged")

func (s *Store) logFile(n int64) string {
	return filepath.Join(s.dir, "log", strconv.FormatInt(n, 10))
}

// readLog returns the n-th change, fs.ErrNotExist, or errTorn.
func (s *Store) readLog(n int64) (c change, err error) {
	data, err := durable.Read(s.logFile(n))
	if err != nil {
		return c, err
	}
	if json.Unmarshal(data, &c) != nil || c.Table == "" || c.Revision != n {
		return c, fmt.Errorf("read %s: %w", s.logFile(n), errTorn)
	}
	return c, nil
}

// newestLog returns the number of the newest change in the log, zero if it is empty.
func (s *Store) newestLog() (newest int64, err error) {
	names, err := readNames(filepath.Join(s.dir, "log"))
	for _, name := range names {
		if n, err := strconv.ParseInt(name, 10, 64); err == nil { // another name is from a killed writer
			newest = max(newest, n)
		}
	}
	return newest, err
}

// findHead searches the newest change, a few steps from the known one.
func (s *Store) findHead() (int64, error) {
	known, err := exists(s.logFile(s.head))
	if err != nil {
		return 0, err
	}
	if !known {
		newest, err := s.newestLog()
		if newest == 0 && err == nil {
			newest, err = s.newestRow() // the log was removed
		}
		return newest, err
	}
	for n := s.head; ; n++ {
		if next, err := exists(s.logFile(n + 1)); !next || err != nil {
			return n, err
		}
	}
}

// settle finds the newest change and brings its object up to date: the writer may have been
// killed before it did. A torn change was never confirmed to a caller.
func (s *Store) settle() (err error) {
	if s.head, err = s.findHead(); err != nil || s.head == s.settled {
		return err
	}
	c, err := s.readLog(s.head)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errTorn):
	case err != nil:
		return err
	default:
		if err := s.apply(c); err != nil {
			return err
		}
	}
	s.settled = s.head
	return nil
}

// commit makes a change, with the next number.
func (s *Store) commit(c change) (store.Revision, error) {
	c.Revision = s.head + 1
	data, err := typed.Marshal(c)
	if err != nil {
		return "", err
	}
	if err := durable.WriteDurable(s.logFile(c.Revision), data, 0o600); err != nil {
		return "", err
	}
	s.head = c.Revision
	if err := s.apply(c); err != nil {
		return "", err
	}
	s.settled = s.head
	if old := s.head - int64(s.keep); old > 0 {
		err = durable.Remove(s.logFile(old))
	}
	return typed.Revision(c.Revision), err
}

// apply brings the object up to a change; a second call changes nothing.
func (s *Store) apply(c change) error {
	path := s.path(c.Table, c.Key)
	if c.Gone {
		if err := durable.Remove(path); err != nil {
			return err
		}
		return durable.SyncDir(filepath.Dir(path))
	}
	if r, err := readRow(path); err == nil && r.Revision >= c.Revision {
		return nil
	}
	data, err := typed.Marshal(c.row)
	if err != nil {
		return err
	}
	return durable.WriteDurable(path, data, 0o600)
}

// history returns the name of this store's history, and draws one if there is none: a
// number alone does not show that the directory was emptied or is another one.
func (s *Store) history() (string, error) {
	path := filepath.Join(s.dir, "history")
	name, err := durable.Read(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if len(name) == 0 {
		name = []byte(rand.Text())
		err = durable.WriteDurable(path, name, 0o600)
	}
	return string(name), err
}

// sweep removes files of the log that a killed process left.
func (s *Store) sweep() error {
	names, err := readNames(filepath.Join(s.dir, "log"))
	for _, name := range names {
		n, e := strconv.ParseInt(name, 10, 64)
		if e != nil || n <= s.head-int64(s.keep) {
			err = errors.Join(err, durable.Remove(filepath.Join(s.dir, "log", name)))
		}
	}
	return err
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// readNames lists a directory, unsorted.
func readNames(dir string) (names []string, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // read only
	return d.Readdirnames(-1)
}
