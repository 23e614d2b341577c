// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// ErrUnknown is wrapped when there is no file of an id. Docker uses such an id only if
// our files were lost.
var ErrUnknown = errors.New("not known to this driver: if /var/lib/patchbay/docker was lost, remove the network from Docker and create it again")

// Store is the directory, such as /var/lib/patchbay/docker.
type Store struct {
	base  string
	below string
	kept  kept
}

// Open makes the directory below base for root alone, and refuses one that others may
// write to.
func Open(base, below string) (*Store, error) {
	for _, kind := range []string{networks, endpoints, pools, leases} {
		if err := durable.MakeDir(base, below, kind); err != nil {
			return nil, fmt.Errorf("open state: %w", err)
		}
	}
	return &Store{base: base, below: below}, nil
}

// Used says whether there is a state to open. A program that only looks or cleans up must
// not make the directory where no driver ever ran.
func Used(base, below string) bool {
	_, err := os.Lstat(filepath.Join(base, below))
	return !errors.Is(err, fs.ErrNotExist)
}

// Kinds of files, which are the names of the directories.
const (
	networks  = "networks"
	endpoints = "endpoints"
	pools     = "pools"
	leases    = "leases"
)

// Dir is the store's directory.
func (s *Store) Dir() string { return filepath.Join(s.base, s.below) }

func (s *Store) path(kind, id string) (string, error) {
	if id == "" || len(id) > 128 || strings.ContainsFunc(id, odd) || id[0] == '.' {
		return "", fmt.Errorf("%s %.140q: not an id", strings.TrimSuffix(kind, "s"), id)
	}
	return filepath.Join(s.Dir(), kind, id), nil
}

// odd says whether a character must not be in an id, which becomes a file name.
func odd(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_'
}

// current is the schema of all kinds.
const current = 1

// maxFile bounds a file, in bytes, by the largest request of Docker.
const maxFile = cnm.MaxBody

// errLarge refuses to write what could not be read again: it could then not be undone.
var errLarge = errors.New("too much to remember")

// object is any kind of file.
type object[T any] interface {
	*T
	version() *int
}

// save writes a whole file and waits until it is on the disk. After a power loss an
// existing endpoint or lease may still have its previous content.
func save[T any, P object[T]](s *Store, kind, id string, v P) error {
	*v.version() = current
	path, err := s.path(kind, id)
	if err != nil {
		return err
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if len(data) > maxFile {
		return fmt.Errorf("save state %s: %w: %d bytes, of %d at most", path, errLarge, len(data), maxFile)
	}
	write := durable.WriteSynced
	if kind == networks || kind == pools { // these are rare
		write = durable.WriteDurable
	}
	if err := write(path, data, 0o600); err != nil {
		s.kept.forget(kind)
		return fmt.Errorf("save state: %w", err)
	}
	written, err := decode[T, P](path, data) // the caller may change its own copy
	if err != nil {
		s.kept.forget(kind)
		return err
	}
	s.kept.put(kind, id, written)
	return nil
}

func (s *Store) drop(kind, id string) error {
	path, err := s.path(kind, id)
	if err != nil {
		return err
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("drop state: %w", err)
	}
	s.kept.drop(kind, id)
	return durable.SyncDir(filepath.Dir(path))
}

func load[T any, P object[T]](s *Store, kind, id string) (*T, error) {
	path, err := s.path(kind, id)
	if err != nil {
		return nil, err
	}
	data, err := durable.ReadUpTo(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s %.12s: %w", strings.TrimSuffix(kind, "s"), id, ErrUnknown)
	}
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return decode[T, P](path, data)
}

func decode[T any, P object[T]](path string, data []byte) (*T, error) {
	out := new(T)
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("read state %s: %w", path, err)
	}
	if v := *P(out).version(); v != current {
		return nil, fmt.Errorf("read state %s: schema %d, this program knows %d", path, v, current)
	}
	return out, nil
}

// list returns the objects that can be read; the error joins the others. The caller must
// not change them: with Keep they are shared.
func list[T any, P object[T]](s *Store, kind string) (all []*T, err error) {
	objects, err := s.kept.list(kind, func() (map[string]any, error) { return read[T, P](s, kind) })
	for _, o := range objects {
		all = append(all, o.(*T))
	}
	return all, err
}

func read[T any, P object[T]](s *Store, kind string) (map[string]any, error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir(), kind))
	if err != nil {
		return nil, fmt.Errorf("list state: %w", err)
	}
	all := make(map[string]any, len(entries))
	var errs []error
	for _, e := range entries {
		if durable.IsTemp(e.Name()) {
			continue
		}
		v, err := load[T, P](s, kind, e.Name())
		switch {
		case err == nil:
			all[e.Name()] = v
		case !errors.Is(err, ErrUnknown): // otherwise it was removed meanwhile
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}
