// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Transport is the way packets take from host to host.
type Transport string

// The transports.
const (
	Routes Transport = "routes" // plain routes; the hosts are on one link
	VXLAN  Transport = "vxlan"
	Auto   Transport = "auto" // routes to hosts on the same link, VXLAN to others
)

// Network is a network of many hosts. It is a desired state that each host applies.
type Network struct {
	Name string `json:"name"`
	// Subnets are the ranges of all hosts together, at most one of each family.
	Subnets []netip.Prefix `json:"subnets"`
	// BlockBits4 and BlockBits6 are the prefix lengths of one host's block.
	BlockBits4 int       `json:"blockBits4,omitempty"`
	BlockBits6 int       `json:"blockBits6,omitempty"`
	Transport  Transport `json:"transport"`
	MTU        int       `json:"mtu,omitempty"` // bytes, of containers; 0: the uplink's, less the tunnel's header
	// Plugins follow the bridge in the chain; nil means firewall and portmap.
	Plugins []json.RawMessage `json:"plugins,omitempty"`
}

// Key returns the name.
func (n Network) Key() string { return n.Name }

// Node is a host. It outlives the host's presence: a host that is cut off from the store
// still has containers, and other hosts still have routes to them.
type Node struct {
	ID       string       `json:"id"` // stays across reboots and renames
	Name     string       `json:"name"`
	Underlay []netip.Addr `json:"underlay"` // where other hosts reach it, at most one of each family
	VTEP     string       `json:"vtep"`     // Ethernet address of its end of the tunnel
	Port     uint16       `json:"port"`     // UDP, of the tunnel
	Seen     time.Time    `json:"seen"`     // when its agent last wrote this record, by its own clock
	// Lasting reports that the node has an endpoint on a lease for as long as its blocks
	// are its own. Then no clock decides that it is gone. A node of an earlier release has
	// none.
	Lasting bool `json:"lasting,omitempty"`
}

// Key returns the id.
func (n Node) Key() string { return n.ID }

// Block is a range that one node allocates addresses from.
type Block struct {
	Network string       `json:"network"`
	Prefix  netip.Prefix `json:"prefix"`
	Node    string       `json:"node"` // the node's id
}

// Key returns "network/address-bits": two nodes cannot create the same block.
func (b Block) Key() string {
	return b.Network + "/" + escape(b.Prefix)
}

// Endpoint is a container on a network. It is on its node's lease.
type Endpoint struct {
	Network   string       `json:"network"`
	ID        string       `json:"id"` // unique on its node
	Node      string       `json:"node"`
	Addrs     []netip.Addr `json:"addrs"`
	MAC       string       `json:"mac,omitempty"`
	Container string       `json:"container,omitempty"` // the container's id
	// Names are the container's names. Other endpoints may have them, too: a name has the
	// addresses of all its endpoints.
	Names []string `json:"names,omitempty"`
}

// Key returns "network/node/id".
func (e Endpoint) Key() string { return e.Network + "/" + e.Node + "/" + e.ID }

// escape returns a prefix as one path element: 10.1.2.0-24, fd00::-64.
func escape(p netip.Prefix) string {
	b, _ := p.Masked().MarshalText()
	for i := range b {
		if b[i] == '/' {
			b[i] = '-'
		}
	}
	return string(b)
}
