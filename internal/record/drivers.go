// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
)

// OfDrivers returns patchbay-cnm's store below a state directory: what its plugins
// requested from Docker's drivers. It outlives a reboot, as the drivers' own state does.
func OfDrivers(stateDir string) *Store { return New(filepath.Join(stateDir, "cnm")) }

// Driver is the part of Record.Remote whose format package cnm/remote keeps stable, for
// readers that do not speak the drivers' protocol.
type Driver struct {
	Driver struct {
		Name string `json:"name"` // empty for a driver that is known by its URL
		URL  string `json:"url"`
	} `json:"driver"`

	// Ended reports that DEL was called and that the driver may not have received it.
	Ended bool `json:"ended"`

	Interface *struct{ Address, AddressIPv6 netip.Prefix } `json:"interface"` // of a network driver

	Addresses []struct {
		Address netip.Prefix `json:"address"`
	} `json:"addresses"` // of an IPAM driver
}

// DriverOf decodes Remote. It is nil for a record of a plugin without a driver. The error
// wraps ErrBroken.
func (r *Record) DriverOf() (*Driver, error) {
	if len(r.Remote) == 0 {
		return nil, nil
	}
	d := new(Driver)
	if err := json.Unmarshal(r.Remote, d); err != nil {
		return nil, fmt.Errorf("record of %s/%s: %w: %w", r.ContainerID, r.IfName, ErrBroken, err)
	}
	return d, nil
}

// String is the driver's name, or its URL.
func (d *Driver) String() string {
	if d.Driver.Name != "" {
		return d.Driver.Name
	}
	return d.Driver.URL
}

// Prefixes are the addresses that the driver assigned or was given.
func (d *Driver) Prefixes() (list []netip.Prefix) {
	for _, a := range d.Addresses {
		list = append(list, a.Address)
	}
	if d.Interface != nil {
		list = append(list, d.Interface.Address, d.Interface.AddressIPv6)
	}
	valid := list[:0]
	for _, p := range list {
		if p.IsValid() {
			valid = append(valid, p)
		}
	}
	return valid
}
