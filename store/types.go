// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Transport is how packets get from host to host.
type Transport string

// The transports.
const (
	Routes Transport = "routes" // plain routes; the hosts are on one link
	VXLAN  Transport = "vxlan"
	Auto   Transport = "auto" // routes to hosts on the same link, VXLAN to others
)

// Network is a network of many hosts. It is a desired state: hosts take it up.
type Network struct {
	Name string `json:"name"`
	// Subnets are the ranges of all hosts together, at most one of each family.
	Subnets []netip.Prefix `json:"subnets"`
	// BlockBits4 and BlockBits6 are the prefix lengths of one host's block.
	BlockBits4 int       `json:"blockBits4,omitempty"`
	BlockBits6 int       `json:"blockBits6,omitempty"`
	Transport  Transport `json:"transport"`
	MTU        int       `json:"mtu,omitempty"` // bytes, of containers; 0: the uplink's, less the tunnel's header
	// Plugins follow the bridge in the chain; nil is firewall and portmap.
	Plugins []json.RawMessage `json:"plugins,omitempty"`
}

// Key is the name.
func (n Network) Key() string { return n.Name }

// Node is a host. It outlives its presence: whoever is cut off from the store
// still has containers, and its neighbours still have routes to them.
type Node struct {
	ID       string       `json:"id"` // stays over reboots and renames
	Name     string       `json:"name"`
	Underlay []netip.Addr `json:"underlay"` // where other hosts reach it, at most one of each family
	VTEP     string       `json:"vtep"`     // Ethernet address of its end of the tunnel
	Port     uint16       `json:"port"`     // UDP, of the tunnel
	Seen     time.Time    `json:"seen"`     // when it was last there for certain, by its own clock
	// Lasting says that an endpoint of it hangs on a lease as long as its blocks are
	// its: then no clock says that it is gone. An earlier release has none.
	Lasting bool `json:"lasting,omitempty"`
}

// Key is the id.
func (n Node) Key() string { return n.ID }

// Block is a range of addresses that one node hands out from.
type Block struct {
	Network string       `json:"network"`
	Prefix  netip.Prefix `json:"prefix"`
	Node    string       `json:"node"` // its id
}

// Key is "network/address-bits": two nodes cannot create the same.
func (b Block) Key() string {
	return b.Network + "/" + escape(b.Prefix)
}

// Endpoint is a container on a network. It hangs on its node's lease.
type Endpoint struct {
	Network   string       `json:"network"`
	ID        string       `json:"id"` // unique on its node
	Node      string       `json:"node"`
	Addrs     []netip.Addr `json:"addrs"`
	MAC       string       `json:"mac,omitempty"`
	Container string       `json:"container,omitempty"` // its id
	// Names are what it is called. Others may be called the same: a name has as
	// many addresses as endpoints have it.
	Names []string `json:"names,omitempty"`
}

// Key is "network/node/id".
func (e Endpoint) Key() string { return e.Network + "/" + e.Node + "/" + e.ID }

// escape is a prefix as one path element: 10.1.2.0-24, fd00::-64.
func escape(p netip.Prefix) string {
	b, _ := p.Masked().MarshalText()
	for i := range b {
		if b[i] == '/' {
			b[i] = '-'
		}
	}
	return string(b)
}
