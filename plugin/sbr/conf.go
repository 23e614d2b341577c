// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration.
type Conf struct {
	// Table is a routing table that another program fills: only rules that lead to it are
	// made, and no route is changed. Without, each address gets a table of its own, the
	// first from 100 on that no rule, route or VRF has.
	// Reference: looks for free tables only in rules and the main table.
	Table *int `json:"table"`

	// Gateways, one of IPv4 and one of IPv6 at most, replace those of the addresses for the
	// default routes of the tables. Refused with `table`.
	// Reference: not in v1.9.1; named so in its development branch.
	Gateways []netip.Addr `json:"gateways"`

	// AddSourceHints keeps, or adds, the route to each address's subnet in the main table,
	// with the address as preferred source: a program that binds no source reaches the
	// subnet. Refused with `table`.
	// Reference: not in v1.9.1; the same in its development branch.
	AddSourceHints bool `json:"addSourceHints"`
}

// maxTable is the largest number of a table, 32 bits without the sign.
const maxTable = 1<<32 - 1

// Load validates the configuration.
func (c *Conf) Load(*plugin.Request) error {
	if c.Table != nil && (*c.Table < 1 || *c.Table > maxTable) {
		return spec.Invalid("invalid table %d: must be between 1 and %d", *c.Table, maxTable)
	}
	if c.Table != nil && (len(c.Gateways) > 0 || c.AddSourceHints) {
		return spec.Invalid("gateways and addSourceHints cannot be set with table %d: its routes are not made here", *c.Table)
	}
	var families [2]bool
	for _, gw := range c.Gateways {
		if !gw.IsValid() || gw.Zone() != "" {
			return spec.Invalid("invalid gateway %q", gw)
		}
		family := &families[0]
		if gw.Is4() {
			family = &families[1]
		}
		if *family {
			return spec.Invalid("gateways may have one address of IPv4 and one of IPv6 at most")
		}
		*family = true
	}
	return nil
}

// validate checks the gateways, if the list shows the addresses.
func validate(r *plugin.Request) error {
	if r.InList == nil {
		return nil
	}
	c := plugin.ConfOf[Conf](r)
	for _, gw := range c.Gateways {
		for _, answer := range r.InList.Answers {
			if endpoint.HasFamily(answer.IPs, gw.Is4()) && !reaches(answer, gw) {
				return spec.Invalid("the gateway %s is in no subnet of the interface", gw)
			}
		}
	}
	return nil
}

// reaches reports whether an interface with these addresses and routes has a neighbour gw.
func reaches(answer *spec.Result, gw netip.Addr) bool {
	near := func(ip spec.IPConfig) bool { return ip.Address.Masked().Contains(gw) || ip.Gateway == gw }
	direct := func(route netstate.Route) bool { return !route.Gateway.IsValid() && route.Dst.Contains(gw) }
	return gw.Is6() && gw.IsLinkLocalUnicast() || slices.ContainsFunc(answer.IPs, near) ||
		slices.ContainsFunc(endpoint.Routes("", answer), direct)
}

// doubts: the kernel has other uses for three tables.
func doubts(r *plugin.Request) []string {
	c := plugin.ConfOf[Conf](r)
	if c.Table == nil || *c.Table < unix.RT_TABLE_DEFAULT || *c.Table > unix.RT_TABLE_LOCAL {
		return nil
	}
	return []string{fmt.Sprintf("table %d is the kernel's, which looks it up for every source already", *c.Table)}
}

// gateway is the next hop of the default route for an address; when it is invalid, only the
// link's own default routes are used.
func (c *Conf) gateway(ip spec.IPConfig) netip.Addr {
	for _, gw := range c.Gateways {
		if gw.Is4() == ip.Address.Addr().Is4() {
			return gw
		}
	}
	return ip.Gateway
}

// sources are the addresses of the interface in the previous result. An address without an
// interface counts as the interface's.
func sources(r *plugin.Request) (ips []spec.IPConfig, err error) {
	for _, ip := range r.Prev().IPs {
		if in := r.Prev().Of(ip); in == nil || in.Name == r.IfName {
			ips = append(ips, ip)
		}
	}
	if len(ips) == 0 {
		return nil, spec.Invalid("No IP addresses supplied on interface: %s", r.IfName)
	}
	return ips, nil
}
