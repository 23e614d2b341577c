// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netavark

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// status is the answer of setup. netavark has the type as StatusBlock.
type status struct {
	Interfaces map[string]*netInterface `json:"interfaces"`
	DNS        []netip.Addr             `json:"dns_server_ips,omitempty"`
	Search     []string                 `json:"dns_search_domains,omitempty"`

	undo func() error // detaches the container again
}

// netInterface is an interface in the container.
type netInterface struct {
	MAC     string       `json:"mac_address"`
	Subnets []netAddress `json:"subnets,omitempty"`
}

// netAddress is an address in the container.
type netAddress struct {
	Address netip.Prefix `json:"ipnet"` // with host bits
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// statusOf converts the result of an ADD. podman shows the interface that it asked for even if the plugins name
// none, as in version 0.2.0. An address without an interface belongs to that one. If the answer has name servers,
// the container gets no others. So statusOf adds the servers of `podman network update` to those of the
// configuration.
func (c *call) statusOf(r *spec.Result, warn func(error)) *status {
	s := &status{Interfaces: map[string]*netInterface{c.Wanted.IfName: {}}, DNS: slices.Clone(c.Network.DNS), Search: r.DNS.Search}
	for _, i := range r.Interfaces {
		if i.Sandbox != "" {
			s.Interfaces[i.Name] = &netInterface{MAC: strings.ToLower(i.Mac)}
		}
	}
	for _, ip := range r.IPs {
		name := c.Wanted.IfName
		if i := r.Of(ip); i != nil {
			name = i.Name
		}
		if at := s.Interfaces[name]; at != nil {
			at.Subnets = append(at.Subnets, netAddress{ip.Address, ip.Gateway})
		}
	}
	for _, server := range r.DNS.Nameservers {
		ip, err := netip.ParseAddr(server)
		if err != nil {
			warn(fmt.Errorf("network %s: name server: %w", c.Network.Name, err))
			continue
		}
		s.DNS = append(s.DNS, ip)
	}
	return s
}

// got returns an error if the container did not get the fixed addresses that it wanted. This can happen only with
// plugins that ignore them.
func (c *call) got(s *status, network string) error {
	at := s.Interfaces[c.Wanted.IfName]
	for _, ip := range c.Wanted.IPs {
		if !slices.ContainsFunc(at.Subnets, func(a netAddress) bool { return a.Address.Addr() == ip }) {
			return fmt.Errorf("CNI network %s did not give the container the address %s: no plugin of the network takes fixed addresses (the capability ips)", network, ip)
		}
	}
	if mac := strings.ToLower(c.Wanted.MAC); mac != "" && at.MAC != "" && at.MAC != mac {
		return fmt.Errorf("CNI network %s gave the interface the address %s and not %s: no plugin of the network takes one (the capability mac)", network, at.MAC, mac)
	}
	return nil
}
