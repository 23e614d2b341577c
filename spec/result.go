// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package spec holds the Container Network Interface as data: the wire types
// of every version from 0.1.0 to 1.1.0, the rules for names and versions, the
// error object and the call envelope (environment and standard input).
//
// There is one Go type for a result, in the newest shape; ParseResult and
// Result.Encode convert at the edge. Nothing here touches a file, a process or
// the network.
package spec

import (
	"encoding/json"
	"net/netip"
)

// Result is what an ADD returns, in the shape of version 1.1.0. An IPAM result
// has no interfaces and no interface indices.
type Result struct {
	CNIVersion string      `json:"cniVersion,omitempty"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	IPs        []IPConfig  `json:"ips,omitempty"`
	Routes     []Route     `json:"routes,omitempty"`
	DNS        DNS         `json:"dns,omitzero"`
}

// Interface is one interface an attachment made or adjusted. Sandbox is the
// path of the container's namespace and empty for the host's.
type Interface struct {
	Name       string `json:"name"`
	Mac        string `json:"mac,omitempty"`
	MTU        int    `json:"mtu,omitempty"` // bytes; since 1.1.0
	Sandbox    string `json:"sandbox,omitempty"`
	SocketPath string `json:"socketPath,omitempty"` // since 1.1.0
	PciID      string `json:"pciID,omitempty"`      // since 1.1.0
}

// IPConfig is one address with its prefix length; host bits are kept.
// Interface is an index into Result.Interfaces.
type IPConfig struct {
	Interface *int         `json:"interface,omitempty"`
	Address   netip.Prefix `json:"address"`
	Gateway   netip.Addr   `json:"gateway,omitzero"`
}

// Route is one route of the container. Without GW the first gateway of the family is used.
// MTU, AdvMSS (bytes), Priority (metric), Table and Scope exist since 1.1.0; scope is 0
// global, 253 link, 254 host.
type Route struct {
	Dst      netip.Prefix `json:"dst"`
	GW       netip.Addr   `json:"gw,omitzero"`
	MTU      int          `json:"mtu,omitempty"`
	AdvMSS   int          `json:"advmss,omitempty"`
	Priority int          `json:"priority,omitempty"`
	Table    *int         `json:"table,omitempty"`
	Scope    *int         `json:"scope,omitempty"`
}

// DNS is the configuration for a container's resolver.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// IsZero reports whether d is empty.
func (d DNS) IsZero() bool {
	return len(d.Nameservers) == 0 && d.Domain == "" && len(d.Search) == 0 && len(d.Options) == 0
}

// Clone returns a copy that shares nothing with r.
func (r *Result) Clone() *Result {
	data, err := json.Marshal(r)
	if err != nil {
		panic("spec: clone result: " + err.Error()) // plain data always marshals
	}
	out := new(Result)
	if err := json.Unmarshal(data, out); err != nil {
		panic("spec: clone result: " + err.Error())
	}
	return out
}

// Attachment names one attachment within a network.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}
