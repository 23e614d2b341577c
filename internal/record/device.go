// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
)

// Device is a link of the host that was moved into a container, with the state from
// before, to which DEL restores it.
type Device struct {
	Name   string `json:"name"`
	Index  int    `json:"index"`
	Kind   string `json:"kind"`             // as in ip(8); a real device has none: "device"
	MAC    string `json:"mac,omitempty"`    // before the move
	Burnt  string `json:"burnt,omitempty"`  // of the hardware
	Path   string `json:"path,omitempty"`   // below /sys/devices
	MTU    int    `json:"mtu,omitempty"`    // bytes
	Up     bool   `json:"up,omitempty"`     // it was set up
	Alias  string `json:"alias,omitempty"`  // ifalias
	Master string `json:"master,omitempty"` // bridge or bond it was a port of

	Addrs  []DeviceAddr  `json:"addrs,omitempty"`  // permanent ones
	Routes []DeviceRoute `json:"routes,omitempty"` // without the kernel's own
}

// DeviceAddr is an address. The numbers are the kernel's constants.
type DeviceAddr struct {
	Prefix netip.Prefix `json:"prefix"`
	Peer   netip.Prefix `json:"peer,omitzero"`
	Label  string       `json:"label,omitempty"`
	Scope  int          `json:"scope,omitempty"`
	Flags  int          `json:"flags,omitempty"`
}

// DeviceRoute is a unicast route. The numbers are the kernel's constants.
type DeviceRoute struct {
	Dst      netip.Prefix `json:"dst"`
	Gateway  netip.Addr   `json:"gw,omitzero"`
	Src      netip.Addr   `json:"src,omitzero"`
	Table    int          `json:"table,omitempty"`
	Priority int          `json:"priority,omitempty"`
	Scope    int          `json:"scope,omitempty"`
	Protocol int          `json:"protocol,omitempty"`
	MTU      int          `json:"mtu,omitempty"`
	AdvMSS   int          `json:"advmss,omitempty"`
	Flags    int          `json:"flags,omitempty"`
}

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
