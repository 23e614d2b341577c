// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/spaces"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Dir is the state below /var/lib/patchbay/cnm.
type Dir struct {
	Path    string
	Records *record.Dir // the records of attachments

	boot  string
	judge life.Judge
}

type storeKey struct{}

// Of returns the state for a session.
func Of(r *plugin.Request) *Dir {
	return r.Session.Value(storeKey{}, func() any {
		s := Open(r.Session.Paths.State)
		s.judge = spaces.Judge(r.Session.Paths)
		s.boot, _ = clock.BootID(r.Session.Paths.Proc) // without an id, all boots look the same
		r.Session.OnClose(s.Records.Close)
		return s
	}).(*Dir)
}

// Open returns the state below the directory stateDir.
func Open(stateDir string) *Dir {
	records := record.OfDrivers(stateDir)
	return &Dir{Path: records.Path, Records: records, judge: life.Judge{Proc: "/proc"}}
}

// Boot returns the id of this boot of the node.
func (d *Dir) Boot() string { return d.boot }

// Schema is the version of the file format. Files of a later version are not read.
const Schema = 1

// These are the kinds of files. Each file records what was requested from a driver for a network.
const (
	Networks = "networks"
	Pools    = "pools"
)

// header is at the beginning of every file.
type header struct {
	Schema int             `json:"schema"`
	Name   string          `json:"name"` // the name of the network
	State  json.RawMessage `json:"state"`
}

// ErrBroken means that a file exists and cannot be used.
var ErrBroken = errors.New("broken state")

func (d *Dir) path(kind, network string) string {
	return filepath.Join(d.Path, kind, network+".json")
}

// Load reads the file of a network. If there is no file, Load returns nil. If T has the method
// Whole, that method reports missing parts.
func Load[T any](d *Dir, kind, network string) (*T, error) {
	if err := durable.CheckDir(d.Path, kind); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	path := d.path(kind, network)
	data, err := durable.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var h header
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w: %w", path, ErrBroken, err)
	case h.Schema > Schema || h.Name != network:
		return nil, fmt.Errorf("read %s: %w: schema %d of %q, this program reads up to %d", path, ErrBroken, h.Schema, h.Name, Schema)
	}
	v := new(T)
	err = json.Unmarshal(h.State, v)
	if whole, ok := any(v).(interface{ Whole() error }); ok && err == nil {
		err = whole.Whole()
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", path, ErrBroken, err)
	}
	return v, nil
}

// LoadWhole works like Load, for an ADD. If a file cannot be used, LoadWhole counts it as
// missing, and the ADD replaces it.
func LoadWhole[T any](d *Dir, r *plugin.Request, kind string) (*T, error) {
	v, err := Load[T](d, kind, r.Network)
	if errors.Is(err, ErrBroken) {
		kernel.Warn(r, err)
		return nil, nil
	}
	return v, err
}

// Save writes the file of a network, and waits until the file is on the disk, because the driver
// also keeps what the file describes. Only few ADDs save the file
// (docs/adr/0005-no-fsync-on-add.md).
func (d *Dir) Save(kind, network string, v any) error {
	state, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	data, err := json.Marshal(header{Schema, network, state})
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := durable.MakeDir(d.Path, kind); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return durable.WriteDurable(d.path(kind, network), data, 0o600)
}

// Remove removes the file of a network. Remove accepts that there is none.
func (d *Dir) Remove(kind, network string) error {
	if err := durable.CheckDir(d.Path, kind); err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	return durable.Remove(d.path(kind, network))
}

// lockTime is how long a call waits for other calls for its network. They may in turn wait for
// the driver.
const lockTime = 60 * time.Second

// Lock takes the lock of a network's file. The kernel releases the lock when the process ends.
func (d *Dir) Lock(ctx context.Context, kind, network string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	if err := durable.MakeDir(d.Path, kind); err != nil {
		return nil, fmt.Errorf("lock state: %w", err)
	}
	unlock, err = durable.Lock(ctx, filepath.Join(d.Path, kind, network+".lock"))
	if err != nil && ctx.Err() != nil {
		return nil, spec.Errorf(spec.CodeTryAgain, "wait for the lock of network %s: %w", network, err).
			WithDetails("another ADD, DEL or GC of the network waits for its driver; check with STATUS whether the driver answers, and try again")
	}
	return unlock, err
}

// Names lists the networks that have a file of this kind.
func (d *Dir) Names(kind string) (names []string, err error) {
	paths, err := filepath.Glob(filepath.Join(d.Path, kind, "*.json"))
	for _, p := range paths {
		names = append(names, strings.TrimSuffix(filepath.Base(p), ".json"))
	}
	return names, err
}

// ID returns 64 hexadecimal digits that depend only on the given names. A network's id is made
// from the names of its driver and of the network. An endpoint's id is made from the network's id
// and the owner key. The owner key is the name of the record, so ID can compute an endpoint's id
// from it.
func ID(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// Hash returns the hash of a value's JSON. A different hash shows that a configuration has changed.
func Hash(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic("cnm: hash: " + err.Error()) // plain data always can be encoded
	}
	return ID(string(data))
}
