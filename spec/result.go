// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package spec defines the data of the Container Network Interface: the wire types of every
// version from 0.1.0 to 1.1.0, the rules for names and versions, the error object, and a plugin
// call with its environment and standard input.
//
// One Go type, Result, serves all versions. Result has the fields of the newest version.
// ParseResult and Result.Encode convert from and to other versions. This package touches no file,
// process or network.
package spec

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/lightjson"
)

// Result is what an ADD returns, with the fields of version 1.1.0. An IPAM result has no
// interfaces and no interface indices.
type Result struct {
	CNIVersion string      `json:"cniVersion,omitempty"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	IPs        []IPConfig  `json:"ips,omitempty"`
	Routes     []Route     `json:"routes,omitempty"`
	DNS        DNS         `json:"dns,omitzero"`
}

// Interface is an interface that a plugin made or changed. Sandbox is the path of the
// container's namespace; it is empty for an interface of the host.
type Interface struct {
	Name       string `json:"name"`
	Mac        string `json:"mac,omitempty"`
	MTU        int    `json:"mtu,omitempty"` // bytes; since 1.1.0
	Sandbox    string `json:"sandbox,omitempty"`
	SocketPath string `json:"socketPath,omitempty"` // since 1.1.0
	PciID      string `json:"pciID,omitempty"`      // since 1.1.0
}

// IPConfig is an address with its prefix length. The host bits of the address are kept.
// Interface is an index into Result.Interfaces.
type IPConfig struct {
	Interface *int         `json:"interface,omitempty"`
	Address   netip.Prefix `json:"address"`
	Gateway   netip.Addr   `json:"gateway,omitzero"`
}

// Route is a route of the container. If a route has no GW, the plugin uses the first gateway of
// the same family. Version 1.1.0 added MTU, AdvMSS (bytes), Priority (metric), Table and Scope.
// Scope is 0 for global, 253 for link, 254 for host.
type Route struct {
	Dst      netip.Prefix `json:"dst"`
	GW       netip.Addr   `json:"gw,omitzero"`
	MTU      int          `json:"mtu,omitempty"`
	AdvMSS   int          `json:"advmss,omitempty"`
	Priority int          `json:"priority,omitempty"`
	Table    *int         `json:"table,omitempty"`
	Scope    *int         `json:"scope,omitempty"`
}

// scopeLink is RT_SCOPE_LINK: a destination with this scope, or a narrower one, is on the link.
const scopeLink = 253

// OnLink reports whether a route has no next hop, not even the default one of a plugin: its gateway
// is 0.0.0.0 or ::, or it has none, and its scope is that of the link (253) or host (254).
func (r Route) OnLink() bool {
	if r.GW.IsValid() {
		return r.GW.IsUnspecified()
	}
	return r.Scope != nil && *r.Scope >= scopeLink
}

// DefaultDst returns the destination of the default route of IPv4, or else of IPv6.
func DefaultDst(v4 bool) netip.Prefix {
	if v4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// DNS configures the container's resolver.
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

// ResolvConf returns d as the text of a resolv.conf(5).
func (d DNS) ResolvConf() string {
	var b strings.Builder
	if len(d.Search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(d.Search, " "))
	} else if d.Domain != "" {
		fmt.Fprintf(&b, "search %s\n", d.Domain)
	}
	for _, s := range d.Nameservers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(d.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(d.Options, " "))
	}
	return b.String()
}

// Clone returns a deep copy of r.
func (r *Result) Clone() *Result {
	data, err := lightjson.Marshal(r)
	if err != nil {
		panic("spec: clone result: " + err.Error()) // cannot fail: r is plain data
	}
	out := new(Result)
	if err := lightjson.Unmarshal(data, out); err != nil {
		panic("spec: clone result: " + err.Error())
	}
	return out
}

// AttachmentKey names one attachment within a network.
type AttachmentKey struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}
