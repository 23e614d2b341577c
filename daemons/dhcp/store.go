// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// schema is the version of the format. The keeper does not read a file of a newer version.
const schema = 1

// leaseFile holds the leases of one attachment.
type leaseFile struct {
	Schema      int       `json:"schema"`
	Boot        string    `json:"boot"` // the boot to which all times here belong
	Owner       owner.Key `json:"owner"`
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID"`
	IfName      string    `json:"ifname"`
	Begun       time.Time `json:"begun,omitzero"` // when the ADD asked for the leases

	Place client.Place `json:"place"`
	// Away is the time since boot until which a program may be moving the interface. Until then the
	// interface may be missing. 0 means that the interface is at Place.
	Away time.Duration `json:"away,omitempty"`

	Options  dhcprpc.Options `json:"options"`
	Priority int             `json:"priority,omitempty"`
	V4       *storedAddress  `json:"v4,omitempty"`
	V6       *storedAddress  `json:"v6,omitempty"`
}

// storedAddress is one address of a lease.
type storedAddress struct {
	Raw   []byte        `json:"raw,omitempty"` // the server's message; empty if the address was lost
	Since time.Duration `json:"since"`         // CLOCK_BOOTTIME of the grant
	// Lost means that the address was on the interface when it expired or was refused. The next
	// address replaces it there.
	Lost bool `json:"lost,omitempty"`
	// Behind has those routes of the lease that the interface lacks, and those of earlier leases that
	// it still has.
	Behind client.Behind `json:"behind,omitzero"`
}

// files stores the leases below /run/patchbay/dhcp, in one file for each attachment. After a kill
// or an update, the next keeper continues with these files. A reboot empties /run, but it ends the
// containers too. A file contains no configuration and no annotations.
type files struct{ run, boot string }

// openFiles opens the directory below run. proc is the mount point of procfs.
func openFiles(run, proc string) (*files, error) {
	id, err := clock.BootID(proc)
	if err != nil {
		return nil, err
	}
	return &files{run: run, boot: id}, nil
}

// write writes a record to its file.
func (s *files) write(r *leaseFile) error {
	r.Schema, r.Boot = schema, s.boot
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode lease: %w", err)
	}
	if err := durable.MakeDir(s.run, dhcprpc.LeaseDir); err != nil {
		return fmt.Errorf("write lease: %w", err)
	}
	if err := durable.Write(dhcprpc.LeaseFile(s.run, r.Owner), data); err != nil {
		return fmt.Errorf("write lease: %w", err)
	}
	return nil
}

// remove deletes a record. It accepts that there is none.
func (s *files) remove(o owner.Key) error {
	if err := durable.CheckDir(s.run, dhcprpc.LeaseDir); err != nil {
		return fmt.Errorf("remove lease: %w", err)
	}
	return durable.Remove(dhcprpc.LeaseFile(s.run, o))
}

// list reads the records of this boot, and removes those of earlier boots. If some records are
// broken, list keeps their files and returns an error together with the good records.
func (s *files) list() (records []*leaseFile, err error) {
	if err := durable.CheckDir(s.run, dhcprpc.LeaseDir); err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	dir, err := os.ReadDir(filepath.Join(s.run, dhcprpc.LeaseDir))
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

func (s *files) read(o owner.Key) (*leaseFile, error) {
	path := dhcprpc.LeaseFile(s.run, o)
	data, err := durable.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := new(leaseFile)
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read lease %s: %w", path, err)
	case r.Schema > schema:
		return nil, fmt.Errorf("read lease %s: schema %d, this program reads up to %d", path, r.Schema, schema)
	case r.Owner != o || o != owner.Of(r.Network, r.ContainerID, r.IfName):
		return nil, fmt.Errorf("read lease %s: it is another attachment's", path)
	case r.Boot != s.boot:
		return nil, durable.Remove(path)
	}
	return r, nil
}
