// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
)

// Device describes a link of the host that was moved into a container. Device has the link's
// earlier state, which DEL restores.
type Device struct {
	Name   string `json:"name"`
	Index  int    `json:"index"`
	Kind   string `json:"kind"`             // as in ip(8); for a real device, which has no kind, "device"
	MAC    string `json:"mac,omitempty"`    // address before the move
	Burnt  string `json:"burnt,omitempty"`  // address of the hardware
	Path   string `json:"path,omitempty"`   // path in /sys/devices
	MTU    int    `json:"mtu,omitempty"`    // bytes
	Up     bool   `json:"up,omitempty"`     // the link was up
	Alias  string `json:"alias,omitempty"`  // ifalias
	Master string `json:"master,omitempty"` // bridge or bond that the link was a port of

	Addrs  []DeviceAddr  `json:"addrs,omitempty"`  // permanent addresses
	Routes []DeviceRoute `json:"routes,omitempty"` // without the routes that the kernel made
}

// DeviceAddr is an address of the link. The numbers are the kernel's constants.
type DeviceAddr struct {
	Prefix netip.Prefix `json:"prefix"`
	Peer   netip.Prefix `json:"peer,omitzero"`
	Label  string       `json:"label,omitempty"`
	Scope  int          `json:"scope,omitempty"`
	Flags  int          `json:"flags,omitempty"`
}

// DeviceRoute is a unicast route of the link. The numbers are the kernel's constants.
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

// OfDrivers returns the store of patchbay-cnm in a state directory. It lists what the plugins of
// patchbay-cnm requested from Docker's drivers. Like the drivers' own state, the store survives a
// reboot.
func OfDrivers(stateDir string) *Dir { return New(filepath.Join(stateDir, "cnm")) }

// Driver is the part of Record.Remote for readers that do not know the protocol of the drivers.
// Package daemons/cnm/remote keeps the format of this part stable.
type Driver struct {
	Driver struct {
		Name string `json:"name"` // empty for a driver that only a URL identifies
		URL  string `json:"url"`
	} `json:"driver"`

	// Ended means that DEL was called, but the driver may not have received it.
	Ended bool `json:"ended"`

	Interface *struct{ Address, AddressIPv6 netip.Prefix } `json:"interface"` // only for a network driver

	Addresses []struct {
		Address netip.Prefix `json:"address"`
	} `json:"addresses"` // only for an IPAM driver
}

// DriverOf decodes Remote. DriverOf returns nil for the record of a plugin without a driver.
// Its error wraps ErrBroken.
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

// String returns the driver's name or, if it has none, its URL.
func (d *Driver) String() string {
	if d.Driver.Name != "" {
		return d.Driver.Name
	}
	return d.Driver.URL
}

// Prefixes returns the addresses of the attachment that the driver knows.
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
