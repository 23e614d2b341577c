// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package record keeps, below /run/patchbay, which objects an attachment has and where,
// which otherwise only the configuration says. A plugin writes its record before it
// touches anything; DEL, GC, `ps` and `repair` read it. A record never holds standard
// input or annotations. It is a hint: the kernel is the truth, and what a lost or broken
// record listed is found by names derived from the owner.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// Schema is the version of the record format. This program does not read newer ones.
const Schema = 1

// Record is what one plugin did for one attachment.
type Record struct {
	Schema      int       `json:"schema"`
	Plugin      string    `json:"plugin"`
	Owner       owner.Key `json:"owner"`
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID"`
	IfName      string    `json:"ifname"`
	NetNS       string    `json:"netns,omitempty"`
	Pod         string    `json:"pod,omitempty"` // of Kubernetes: "namespace/name"

	// NetNSMark distinguishes the namespace from a later one at the same path.
	NetNSMark *life.Mark `json:"netnsMark,omitempty"`

	Bridge   string        `json:"bridge,omitempty"`
	DataDir  string        `json:"dataDir,omitempty"`
	Socket   string        `json:"socket,omitempty"`   // of the keeper that holds the lease
	Links    []string      `json:"links,omitempty"`    // links in the host's namespace
	Elements []nft.Element `json:"elements,omitempty"` // only of this attachment
	Shared   []string      `json:"shared,omitempty"`   // network-level facts it holds

	// Displaced are attachments that had elements with this one's keys before it: a port
	// of the same container, an address that another network assigned too. The last one to
	// come restores their elements when it goes.
	Displaced []owner.Key `json:"displaced,omitempty"`

	// Noted reports that Displaced is complete: not in a record of an earlier release, nor
	// in one that was reconstructed after a loss.
	Noted bool `json:"noted,omitempty"`

	Device *Device `json:"device,omitempty"` // of the host, now in the container

	Zone    string         `json:"zone,omitempty"`    // of firewalld, with Sources added
	Sources []netip.Prefix `json:"sources,omitempty"` // single addresses

	// OtherZones are the zones of earlier ADDs under the same names.
	OtherZones []ZoneSources `json:"otherZones,omitempty"`

	// Accepts are single addresses accepted where an iptables-nft FORWARD drops,
	// behind the operator's AdminChain.
	Accepts    []netip.Prefix `json:"accepts,omitempty"`
	AdminChain string         `json:"adminChain,omitempty"`

	Rules []Rule `json:"rules,omitempty"` // in the container's namespace
	VRF   *VRF   `json:"vrf,omitempty"`   // in the container's namespace

	Remote json.RawMessage `json:"remote,omitempty"` // what a driver outside was asked for, in cnm/remote's format
}

// ZoneSources are addresses in a zone of firewalld.
type ZoneSources struct {
	Zone    string         `json:"zone"`
	Sources []netip.Prefix `json:"sources"`
}

// Zones are all zones in the record.
func (r *Record) Zones() (zones []ZoneSources) {
	if len(r.Sources) > 0 {
		zones = append(zones, ZoneSources{r.Zone, r.Sources})
	}
	return append(zones, r.OtherZones...)
}

// VRF is the virtual router of the interface.
type VRF struct {
	Name string `json:"name"`
	Made bool   `json:"made,omitempty"` // the ADD made it
}

// Rule routes packets from an address of the container by a routing table.
type Rule struct {
	Src   netip.Addr `json:"src"`
	Table int        `json:"table"`
	Own   bool       `json:"own,omitempty"` // only this attachment uses the table
}

// Life reports whether the namespace that r was made for still exists.
func (r *Record) Life(proc string) (state life.State, why string) {
	return life.At(r.NetNS, r.NetNSMark, proc)
}

// Store is a directory of records.
type Store struct {
	Dir string

	locks locks
}

// New returns the store below a run directory.
func New(runDir string) *Store { return &Store{Dir: runDir} }

const attachments = "attachments"

func (s *Store) path(network string, o owner.Key, plugin string) string {
	return filepath.Join(s.Dir, attachments, network, string(o)+"."+plugin)
}

// guard refuses directories that another user could have made or can write to.
func (s *Store) guard(below ...string) error { return durable.CheckDir(s.Dir, below...) }

// Ready returns an error if no record of the network can be written.
func (s *Store) Ready(network string) error {
	if err := s.guard(attachments, network); err != nil {
		return err
	}
	return durable.WritableDir(filepath.Join(s.Dir, attachments, network))
}

// Write stores r, replacing an earlier record of the same plugin and owner, and
// keeps it locked until the Store is closed or the record removed.
// network, owner and plugin are validated names, so the path stays inside.
func (s *Store) Write(r *Record) error {
	for {
		if err := s.Rewrite(r); err != nil || !s.yield(r.Network, r.Owner) {
			return err
		}
	}
}

// ErrChanged is wrapped by the error of WriteOver.
var ErrChanged = errors.New("another process wrote the record")

// WriteOver is Write for a caller that has carried the earlier record over into r, or
// found none: if the file has changed since, it writes nothing and fails with ErrChanged.
func (s *Store) WriteOver(r *Record) error {
	path := s.path(r.Network, r.Owner, r.Plugin)
	was, known := s.known(path)
	create := known && was == (version{})
	if !create {
		s.lock(path, patience)
		if known && was != versionAt(path) {
			return fmt.Errorf("write record: %s: %w", path, ErrChanged)
		}
	}
	err := s.write(r, create)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("write record: %s: %w", path, ErrChanged)
	}
	if err == nil && s.yield(r.Network, r.Owner) {
		return s.Write(r)
	}
	return err
}

// Rewrite is Write for a DEL that keeps what it could not finish: it does not wait for a
// gc, which may be its caller.
func (s *Store) Rewrite(r *Record) error { return s.write(r, false) }

// write replaces a record, or with create makes one where there is none.
func (s *Store) write(r *Record, create bool) error {
	r.Schema = Schema
	data, err := encode(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if len(data) > maxFile {
		return fmt.Errorf("write record: %d bytes, of %d at most", len(data), maxFile)
	}
	if err := s.guard(attachments, r.Network); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	path := s.path(r.Network, r.Owner, r.Plugin)
	place := durable.CreateLocked
	if !create {
		place = durable.WriteLocked
		s.lock(path, patience) // another process may work with an earlier one
	}
	if err := s.placeBy(place, path, data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

func (s *Store) place(path string, data []byte) error {
	return s.placeBy(durable.WriteLocked, path, data)
}

// placeBy writes a file and keeps it locked.
func (s *Store) placeBy(place func(string, []byte) (int, error), path string, data []byte) (err error) {
	for range 10 { // another process removes the directory with the network's last record
		var fd int
		fd, err = place(path, data)
		if err == nil {
			s.keep(path, fd)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("make directory of records: %w", err)
		}
	}
	return err
}

// Read returns the record of a plugin, or nil when there is none. The error of a record
// that cannot be read (torn, newer schema) wraps ErrBroken: report it and go on with
// names.
func (s *Store) Read(network string, o owner.Key, plugin string) (*Record, error) {
	if err := s.guard(attachments, network); err != nil {
		return nil, fmt.Errorf("read record: %w: %w", ErrBroken, err)
	}
	return s.readKnown(s.path(network, o, plugin))
}

// readKnown reads a record and notes its version.
func (s *Store) readKnown(path string) (*Record, error) {
	v, err := lookAt(path) // before reading: a record that is written meanwhile is another version
	s.know(path, v)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return read(path)
}

// Find returns the record of a plugin for an owner whose network is not known,
// or nil when there is none.
func (s *Store) Find(o owner.Key, plugin string) (*Record, error) {
	if !o.Valid() {
		return nil, nil
	}
	paths, err := filepath.Glob(s.path("*", o, plugin))
	if err != nil || len(paths) == 0 {
		return nil, err
	}
	return s.Read(filepath.Base(filepath.Dir(paths[0])), o, plugin)
}

// ErrBroken is wrapped when a record exists and cannot be used.
var ErrBroken = errors.New("broken record")

// maxFile is the largest record, in bytes. A published port takes about 700 of them, and
// telephony publishes ten thousand.
const maxFile = 128 << 20

func read(path string) (*Record, error) {
	data, err := durable.ReadUpTo(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := new(Record)
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err != nil {
		return nil, fmt.Errorf("read record %s: %w: %w", path, ErrBroken, err)
	}
	if r.Schema > Schema || !r.Owner.Valid() {
		return nil, fmt.Errorf("read record %s: %w: schema %d, this program reads up to %d", path, ErrBroken, r.Schema, Schema)
	}
	if !r.belongs(path) {
		return nil, fmt.Errorf("read record %s: %w: it is another attachment's", path, ErrBroken)
	}
	return r, nil
}

// belongs reports whether r matches its path. Its names become parts of other paths, so
// they must be the ones that were validated when the owner was made.
func (r *Record) belongs(path string) bool {
	dir, file := filepath.Split(path)
	return r.Owner == owner.Of(r.Network, r.ContainerID, r.IfName) &&
		file == string(r.Owner)+"."+r.Plugin && filepath.Base(dir) == r.Network &&
		spec.ValidateContainerID(r.ContainerID) == nil && spec.ValidateIfName(r.IfName) == nil
}

// readFound reads a record whose directory was found by a glob pattern.
func (s *Store) readFound(path string) (*Record, error) {
	if err := s.guard(attachments, filepath.Base(filepath.Dir(path))); err != nil {
		return nil, fmt.Errorf("read record %s: %w: %w", path, ErrBroken, err)
	}
	return read(path)
}

// Remove deletes the record of a plugin, and with the last record the network's directory.
// It deletes only the file that this Store last read, wrote or locked: a late DEL keeps
// the record of a newer ADD under the same names, and so does one that found none. A
// missing record is no error.
func (s *Store) Remove(network string, o owner.Key, plugin string) error {
	if err := s.guard(attachments, network); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	path := s.path(network, o, plugin)
	defer s.unlock(path)
	was, known := s.known(path)
	if known && was == (version{}) { // an ADD may write one at any moment
		removeEmpty(filepath.Dir(path))
		return nil
	}
	if known && was != versionAt(path) {
		return nil
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	s.know(path, version{})
	removeEmpty(filepath.Dir(path))
	return nil
}

// removeEmpty removes a directory unless it has an entry: rmdir itself decides, so no
// other process's file can be lost.
func removeEmpty(dir string) { _ = unix.Rmdir(dir) }

// Torn is a record that exists and cannot be used. Its path gives the owner.
type Torn struct {
	Network string
	Owner   owner.Key
	Plugin  string
	Err     error // wraps ErrBroken
}

// List reads all records, of one network or of all (""), in no order. The errors of broken
// ones are joined; the good ones are returned as well.
func (s *Store) List(network string) (records []*Record, err error) {
	records, torn, err := s.Scan(network)
	errs := []error{err}
	for _, t := range torn {
		errs = append(errs, t.Err)
	}
	return records, errors.Join(errs...)
}

// Scan is List with the broken records apart, if their file names are those of records.
// Files with other names are in the error.
func (s *Store) Scan(network string) (records []*Record, torn []Torn, err error) {
	pattern := filepath.Join(s.Dir, attachments, "*", "*")
	if network != "" {
		pattern = filepath.Join(s.Dir, attachments, network, "*")
	}
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, nil, fmt.Errorf("list records: %w", err)
	}
	var errs []error
	for _, path := range paths {
		if durable.IsTemp(path) {
			continue
		}
		r, err := s.readFound(path)
		t, named := tornAt(path, err)
		switch {
		case r != nil:
			records = append(records, r)
		case err != nil && named:
			torn = append(torn, t)
		case err != nil:
			errs = append(errs, err)
		}
	}
	return records, torn, errors.Join(errs...)
}

// tornAt reads network, owner and plugin from the path of a record.
func tornAt(path string, err error) (t Torn, ok bool) {
	key, plugin, ok := strings.Cut(filepath.Base(path), ".")
	t = Torn{Network: filepath.Base(filepath.Dir(path)), Owner: owner.Key(key), Plugin: plugin, Err: err}
	return t, ok && plugin != "" && t.Owner.Valid() && spec.ValidateNetworkName(t.Network) == nil
}
