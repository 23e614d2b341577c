// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import "net/netip"

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
