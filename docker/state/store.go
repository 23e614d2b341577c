// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package state is the Docker driver's memory: dockerd never repeats a network or an
// endpoint, and sends nothing after it was killed. Each object has a file of its own,
// which names each step before it is done: after a kill, the driver knows what may exist.
// After a power loss it knows all objects (fsync), but an endpoint's file may be an older
// one: an endpoint's phase means nothing after a reboot.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// ErrUnknown is wrapped when there is no file of an id. Docker uses such an id only if
// our files were lost.
var ErrUnknown = errors.New("not known to this driver: if /var/lib/patchbay/docker was lost, remove the network from Docker and create it again")

// Store is the directory, such as /var/lib/patchbay/docker.
type Store struct {
	dir string

	Networks  Kind[Network, *Network]
	Endpoints Kind[Endpoint, *Endpoint]
	Pools     Kind[Pool, *Pool]
	Leases    Kind[Allocation, *Allocation]
}

// The names of the kinds' directories.
const (
	networks  = "networks"
	endpoints = "endpoints"
	pools     = "pools"
	leases    = "leases"
)

// Open makes the directory below base for root alone, and refuses one that others may
// write to.
func Open(base, below string) (*Store, error) {
	s := &Store{dir: filepath.Join(base, below)}
	for kind, dir := range map[string]*string{networks: &s.Networks.dir, endpoints: &s.Endpoints.dir, pools: &s.Pools.dir, leases: &s.Leases.dir} {
		if err := durable.MakeDir(base, below, kind); err != nil {
			return nil, fmt.Errorf("open state: %w", err)
		}
		*dir = filepath.Join(s.dir, kind)
	}
	s.Networks.rare, s.Pools.rare = true, true
	return s, nil
}

// Used says whether there is a state to open. A program that only looks or cleans up must
// not make the directory where no driver ever ran.
func Used(base, below string) bool {
	_, err := os.Lstat(filepath.Join(base, below))
	return !errors.Is(err, fs.ErrNotExist)
}

// Dir is the store's directory.
func (s *Store) Dir() string { return s.dir }

// Keep is for the only process that writes here, before it uses the store: from now on it
// reads each list once from the disk. Other processes read the directory each time. If
// another process removes a file, this one notices only after a restart.
func (s *Store) Keep() {
	s.Networks.keep, s.Endpoints.keep, s.Pools.keep, s.Leases.keep = true, true, true, true
}

// Kind is all files of one kind.
type Kind[T any, P object[T]] struct {
	dir  string
	rare bool // its files are written seldom, and survive a power loss as they were written
	keep bool

	// kept are the decoded objects by id, as they are on the disk; the first list fills it.
	// Then a driver can cheaply search a thousand endpoints for a port.
	mu   sync.Mutex
	kept map[string]*T
}

// object is any kind of file.
type object[T any] interface {
	*T
	key() (id string, version *int)
}

func (k *Kind[T, P]) path(id string) (string, error) {
	if id == "" || len(id) > 128 || strings.ContainsFunc(id, odd) || id[0] == '.' {
		return "", fmt.Errorf("%s %.140q: not an id", k.name(), id)
	}
	return filepath.Join(k.dir, id), nil
}

// odd says whether a character must not be in an id, which becomes a file name.
func odd(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_'
}

func (k *Kind[T, P]) name() string { return strings.TrimSuffix(filepath.Base(k.dir), "s") }

// current is the schema of all kinds.
const current = 1

// maxFile bounds a file, in bytes, by the largest request of Docker.
const maxFile = cnm.MaxBody

// errLarge refuses to write what could not be read again: it could then not be undone.
var errLarge = errors.New("too much to remember")

// Save writes a whole file and waits until it is on the disk. After a power loss an
// existing endpoint or lease may still have its previous content.
func (k *Kind[T, P]) Save(v P) error {
	id, version := v.key()
	*version = current
	path, err := k.path(id)
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
	if k.rare {
		write = durable.WriteDurable
	}
	var written *T
	if err = write(path, data, 0o600); err == nil {
		written, err = decode[T, P](path, data) // the caller may change its own copy
	}
	// After the write: a list that is read meanwhile has the old or the new object, and
	// then the new one.
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err != nil:
		k.kept = nil // either object may be on the disk
		return fmt.Errorf("save state: %w", err)
	case k.kept != nil:
		k.kept[id] = written
	}
	return nil
}

// Drop forgets an object. A missing one is no error.
func (k *Kind[T, P]) Drop(id string) error {
	path, err := k.path(id)
	if err != nil {
		return err
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("drop state: %w", err)
	}
	k.mu.Lock()
	delete(k.kept, id)
	k.mu.Unlock()
	return durable.SyncDir(k.dir)
}

// Get reads an object; the error wraps ErrUnknown when there is none.
func (k *Kind[T, P]) Get(id string) (*T, error) {
	path, err := k.path(id)
	if err != nil {
		return nil, err
	}
	data, err := durable.ReadUpTo(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s %.12s: %w", k.name(), id, ErrUnknown)
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
	if _, v := P(out).key(); *v != current {
		return nil, fmt.Errorf("read state %s: schema %d, this program knows %d", path, *v, current)
	}
	return out, nil
}

// List returns the objects that can be read, in the order of ids; the error names the
// others, and a list with an error is not kept. The caller must not change the objects:
// with Keep they are shared.
func (k *Kind[T, P]) List() (all []*T, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.kept
	if of == nil {
		if of, err = k.read(); err == nil && k.keep {
			k.kept = of
		}
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		all = append(all, of[id])
	}
	return all, err
}

func (k *Kind[T, P]) read() (map[string]*T, error) {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return nil, fmt.Errorf("list state: %w", err)
	}
	all := make(map[string]*T, len(entries))
	var errs []error
	for _, e := range entries {
		if durable.IsTemp(e.Name()) {
			continue
		}
		v, err := k.Get(e.Name())
		switch {
		case err == nil:
			all[e.Name()] = v
		case !errors.Is(err, ErrUnknown): // otherwise it was removed meanwhile
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}
