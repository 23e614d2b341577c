// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package store keeps the leases of a keeper below /run/patchbay/dhcp, one file for each
// attachment, so that the next keeper continues where a killed or replaced one stopped.
// /run is right for that: after a reboot the containers are gone too. A file holds no
// configuration and no annotations.
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/dhcpconf"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/lease/place"
)

// Schema is the number of the format. A newer one is not read.
const Schema = 1

// Record is one attachment's leases.
type Record struct {
	Schema      int       `json:"schema"`
	Boot        string    `json:"boot"` // times are since this boot
	Owner       owner.Key `json:"owner"`
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID"`
	IfName      string    `json:"ifname"`
	Begun       time.Time `json:"begun,omitzero"` // when the ADD asked for it

	Place place.Place `json:"place"`
	// Away is the time since boot until which the interface may be nowhere, since a program
	// is moving it. 0 means that it is at Place.
	Away time.Duration `json:"away,omitempty"`

	Options  dhcpconf.Options `json:"options"`
	Priority int              `json:"priority,omitempty"`
	V4       *Held            `json:"v4,omitempty"`
	V6       *Held            `json:"v6,omitempty"`
}

// Held is one address.
type Held struct {
	Raw   []byte        `json:"raw,omitempty"` // the server's message; empty when the address was lost
	Since time.Duration `json:"since"`         // CLOCK_BOOTTIME of the grant
	// Lost was on the interface when it expired or was refused: the next address replaces
	// it there.
	Lost bool `json:"lost,omitempty"`
}

// Store is a directory of records, of one boot.
type Store struct{ Run, Boot string }

// New opens the store below a run directory. proc is the mount point of procfs.
func New(run, proc string) (*Store, error) {
	id, err := clock.BootID(proc)
	if err != nil {
		return nil, err
	}
	return &Store{Run: run, Boot: id}, nil
}

// Write stores a record.
func (s *Store) Write(r *Record) error {
	r.Schema, r.Boot = Schema, s.Boot
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode lease: %w", err)
	}
	if err := durable.MakeDir(s.Run, dhcpconf.LeaseDir); err != nil {
		return fmt.Errorf("write lease: %w", err)
	}
	if err := durable.Write(dhcpconf.LeaseFile(s.Run, r.Owner), data); err != nil {
		return fmt.Errorf("write lease: %w", err)
	}
	return nil
}

// Remove deletes a record. A missing one is no error.
func (s *Store) Remove(o owner.Key) error {
	if err := durable.CheckDir(s.Run, dhcpconf.LeaseDir); err != nil {
		return fmt.Errorf("remove lease: %w", err)
	}
	return durable.Remove(dhcpconf.LeaseFile(s.Run, o))
}

// List reads every record of this boot and removes those of another. Errors of broken
// records are joined and returned beside the good ones; the files are kept.
func (s *Store) List() (records []*Record, err error) {
	if err := durable.CheckDir(s.Run, dhcpconf.LeaseDir); err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	dir, err := os.ReadDir(filepath.Join(s.Run, dhcpconf.LeaseDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	var errs []error
	for _, e := range dir {
		key, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !owner.Key(key).Valid() {
			continue
		}
		r, err := s.read(owner.Key(key))
		if err != nil {
			errs = append(errs, err)
		}
		if r != nil {
			records = append(records, r)
		}
	}
	return records, errors.Join(errs...)
}

func (s *Store) read(o owner.Key) (*Record, error) {
	path := dhcpconf.LeaseFile(s.Run, o)
	data, err := durable.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := new(Record)
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read lease %s: %w", path, err)
	case r.Schema > Schema:
		return nil, fmt.Errorf("read lease %s: schema %d, this program reads up to %d", path, r.Schema, Schema)
	case r.Owner != o || o != owner.Of(r.Network, r.ContainerID, r.IfName):
		return nil, fmt.Errorf("read lease %s: it is another attachment's", path)
	case r.Boot != s.Boot:
		return nil, durable.Remove(path)
	}
	return r, nil
}
