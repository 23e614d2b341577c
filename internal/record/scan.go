// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// Torn is a record that exists but cannot be used. Its path says to which owner it belongs.
type Torn struct {
	Network string
	Owner   owner.Key
	Plugin  string
	Err     error // wraps ErrBroken
}

// List reads the records of a network, or of all networks if network is "", in any order. List
// returns the good records together with the joined errors of the broken ones.
func (d *Dir) List(network string) (records []*Record, err error) {
	records, torn, err := d.Scan(network)
	errs := []error{err}
	for _, t := range torn {
		errs = append(errs, t.Err)
	}
	return records, errors.Join(errs...)
}

// Scan works like List, but returns broken records separately if their file names are those of
// records. Files with other names are in the error.
func (d *Dir) Scan(network string) (records []*Record, torn []Torn, err error) {
	pattern := filepath.Join(d.Path, claim.Attachments, "*", "*")
	if network != "" {
		pattern = filepath.Join(d.Path, claim.Attachments, network, "*")
	}
	return d.scan(pattern)
}

// Owners returns the owners that have a record of any plugin and network, readable or not. An owner may be
// in the list several times.
func (d *Dir) Owners() (list []owner.Key) {
	found, _ := filepath.Glob(filepath.Join(d.Path, claim.Attachments, "*", "*")) // the pattern is valid
	for _, path := range found {
		if o, _, ok := strings.Cut(filepath.Base(path), "."); ok && !durable.IsTemp(path) {
			list = append(list, owner.Key(o))
		}
	}
	return list
}

// ScanPlugin works like Scan, for the records that one plugin wrote in all networks.
func (d *Dir) ScanPlugin(plugin string) (records []*Record, torn []Torn, err error) {
	return d.scan(filepath.Join(d.Path, claim.Attachments, "*", "*."+plugin))
}

func (d *Dir) scan(pattern string) (records []*Record, torn []Torn, err error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, nil, fmt.Errorf("list records: %w", err)
	}
	var errs []error
	for _, path := range paths {
		if durable.IsTemp(path) {
			continue
		}
		r, err := d.readFound(path)
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
