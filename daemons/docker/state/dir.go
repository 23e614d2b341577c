// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package state stores the objects of the Docker driver, because dockerd sends each network and
// endpoint only once, and sends nothing again after it was killed. Each object has its own file.
// The driver writes each step into the file before it takes the step. So after a kill it knows
// what may exist. After a power loss all objects are there (fsync), but the file of an endpoint
// may be an older version. This does no harm, because after a reboot the phase of an endpoint
// does not matter.
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

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// ErrUnknown means that an id has no file. Docker uses such an id only if our files were lost.
var ErrUnknown = errors.New("not known to this driver: if /var/lib/patchbay/docker was lost, remove the network from Docker and create it again")

// Dir is the directory of the state, such as /var/lib/patchbay/docker.
type Dir struct {
	dir string

	Networks  Kind[Network, *Network]
	Endpoints Kind[Endpoint, *Endpoint]
	Pools     Kind[Pool, *Pool]
	Leases    Kind[Allocation, *Allocation]
}

// These are the directories of the kinds.
const (
	networks  = "networks"
	endpoints = "endpoints"
	pools     = "pools"
	leases    = "leases"
)

// Open makes the directory below base, which only root can read. It refuses a directory to
// which others can write.
func Open(base, below string) (*Dir, error) {
	s := &Dir{dir: filepath.Join(base, below)}
	for kind, dir := range map[string]*string{networks: &s.Networks.dir, endpoints: &s.Endpoints.dir, pools: &s.Pools.dir, leases: &s.Leases.dir} {
		if err := durable.MakeDir(base, below, kind); err != nil {
			return nil, fmt.Errorf("open state: %w", err)
		}
		*dir = filepath.Join(s.dir, kind)
	}
	s.Networks.rare, s.Pools.rare = true, true
	return s, nil
}

// Used reports whether a state exists. A program that only looks or cleans up must not create
// the directory on a node where no driver has run.
func Used(base, below string) bool {
	_, err := os.Lstat(filepath.Join(base, below))
	return !errors.Is(err, fs.ErrNotExist)
}

// Path returns the directory of the state.
func (d *Dir) Path() string { return d.dir }

// Keep makes the store remember each list after the first read. Only the process that writes the
// state may call Keep, and before it uses the store. Other processes read the directory each
// time. After Keep, the process does not notice that another process removed a file, until it
// starts again.
func (d *Dir) Keep() {
	d.Networks.keep, d.Endpoints.keep, d.Pools.keep, d.Leases.keep = true, true, true, true
}

// Kind holds all objects of one kind.
type Kind[T any, P object[T]] struct {
	dir  string
	rare bool // the files are seldom written; after a power loss they have their last content
	keep bool

	// kept holds the decoded objects by id, as they are on the disk. The first List fills it.
	// It lets a driver search a thousand endpoints for a port quickly.
	mu   sync.Mutex
	kept map[string]*T
}

// object is an object of any kind.
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

// odd reports whether a character must not be in an id, because the id becomes a file name.
func odd(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_'
}

func (k *Kind[T, P]) name() string { return strings.TrimSuffix(filepath.Base(k.dir), "s") }

// current is the schema version of all kinds.
const current = 1

// maxFile limits a file, in bytes, to the size of Docker's largest request.
const maxFile = cnm.MaxBody

// errLarge refuses a file that would be too large to read again. Its object could then not be
// removed.
var errLarge = errors.New("too much to remember")

// Save writes a whole file and waits until it is on the disk. After a power loss, an endpoint
// or lease that existed before may have its old content.
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
		written, err = decode[T, P](path, data) // decode again, because the caller may change its copy
	}
	// The list is changed only after the write. A List that runs meanwhile returns the old or the
	// new object. A later List returns the new one.
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err != nil:
		k.kept = nil // the old or the new object may be on the disk
		return fmt.Errorf("save state: %w", err)
	case k.kept != nil:
		k.kept[id] = written
	}
	return nil
}

// Drop removes an object. It accepts that the object does not exist.
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

// ErrDamaged means that a file has no object, and never will have.
var ErrDamaged = errors.New("the file is damaged")

// OnlyDamaged reports whether an error of List names nothing but damaged files.
func OnlyDamaged(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error }) // List joined it
	return ok && !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !errors.Is(err, ErrDamaged) })
}

// Get reads an object. If there is none, the error wraps ErrUnknown.
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
		return nil, fmt.Errorf("read state %s: %w: %w", path, ErrDamaged, err)
	}
	if _, v := P(out).key(); *v != current {
		return nil, fmt.Errorf("read state %s: schema %d, this program knows %d", path, *v, current)
	}
	return out, nil
}

// List returns the objects that can be read, sorted by id. The error names the others. If there
// is an error, the list is not kept for later calls. The caller must not change the objects,
// because after Keep all callers share them.
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
		case !errors.Is(err, ErrUnknown): // unless another process has removed the object
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}
