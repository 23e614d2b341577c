// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmipam

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/spec"
)

// Section is the section `ipam` of a configuration with cnm-ipam. The fields of Subnet describe a
// pool too, which comes before the pools in Pools.
type Section struct {
	remote.Conf
	Subnet

	// Type is cnm-ipam.
	// Reference: none, ours only.
	Type string `json:"type"`

	// Pools are several pools; one address is given from each. At most one of a family.
	// Default: one of IPv4 that the driver chooses.
	// Reference: none, ours only.
	Pools []Subnet `json:"pools"`

	// Options are the driver's options, as --ipam-opt of Docker.
	// Reference: none, ours only.
	Options map[string]string `json:"options"`

	// AddressSpace names the driver's address space.
	// Default: the driver's local default.
	// Reference: none, ours only.
	AddressSpace string `json:"addressSpace"`

	// Routes are copied into the result; a route without gw leads to the gateway. Reference:
	// none, ours only.
	Routes []spec.Route `json:"routes"`

	// DNS is copied into the result. Reference: none, ours only.
	DNS spec.DNS `json:"dns"`

	// KeepPool keeps the pools. With false, the first GC that finds no attachment gives them
	// back. Default: true. Reference: none, ours only.
	KeepPool *bool `json:"keepPool"`
}

// Subnet is a pool to request.
type Subnet struct {
	// Subnet in CIDR notation, as --subnet of Docker; empty leaves the choice to the driver.
	// Reference: none, ours only.
	Subnet string `json:"subnet"`

	// IPRange is the part of the subnet to give out, as --ip-range.
	// Reference: none, ours only.
	IPRange string `json:"ipRange"`

	// Gateway is the requested gateway; empty leaves the choice to the driver.
	// Reference: none, ours only.
	Gateway string `json:"gateway"`

	// AuxAddresses are addresses to reserve, each under a name, as --aux-address. Reference: none,
	// ours only.
	AuxAddresses map[string]string `json:"auxAddresses"`

	// IPv6 requests an IPv6 pool if subnet is empty.
	// Reference: none, ours only.
	IPv6 bool `json:"ipv6"`
}

// State holds what a driver gave for a network.
type State struct {
	Driver      cnm.DriverAddr `json:"driver"`
	Hash        string         `json:"hash"` // hash of the requests
	Space       string         `json:"space"`
	RequiresMAC bool           `json:"requiresMAC,omitempty"`
	Pools       []*Pool        `json:"pools"`

	// RequiresReplay is a capability of the driver. Boot is the id of the boot in which the last
	// requests were sent.
	RequiresReplay bool   `json:"requiresReplay,omitempty"`
	Boot           string `json:"boot,omitempty"`

	// Again counts how often the pools were requested again because the driver had forgotten them.
	// By this number an ADD sees that another ADD has already requested them.
	Again int `json:"times,omitempty"`
}

// Whole returns an error if the file has an empty pool.
func (s *State) Whole() error {
	if slices.Contains(s.Pools, nil) {
		return errors.New("a pool without content")
	}
	return nil
}

// Pool is one pool. Fields that the driver has not filled yet are zero.
type Pool struct {
	Request cnm.RequestPoolRequest `json:"request"`
	Gateway netip.Addr             `json:"gateway,omitzero"` // the requested gateway
	Aux     map[string]netip.Addr  `json:"aux,omitempty"`    // the requested addresses

	ID       string                  `json:"id,omitempty"`
	Prefix   netip.Prefix            `json:"prefix,omitzero"`
	Has      netip.Prefix            `json:"has,omitzero"`      // the address that the driver gave as gateway
	Reserved bool                    `json:"reserved,omitzero"` // the gateway was requested as a separate address
	HasAux   map[string]netip.Prefix `json:"hasAux,omitempty"`
	Done     bool                    `json:"done,omitempty"`
}

// Data returns the pools in the form of CreateNetwork.
func (s *State) Data() (v4, v6 []cnm.IPAMData) {
	for _, p := range s.Pools {
		d := cnm.IPAMData{AddressSpace: s.Space, Pool: p.Prefix, Gateway: p.Has, AuxAddresses: p.HasAux}
		if p.Request.V6 {
			v6 = append(v6, d)
		} else {
			v4 = append(v4, d)
		}
	}
	return v4, v6
}

// load returns the pools to request, as the configuration names them. Its errors have the code 7.
func (c *Section) load() (*State, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &State{Space: c.AddressSpace}
	families := map[bool]bool{}
	for _, sub := range c.all() {
		p, err := sub.pool(c.Options)
		if err != nil {
			return nil, err
		}
		if families[p.Request.V6] {
			return nil, spec.Invalid("two pools of one family: an endpoint of Docker has one address of each")
		}
		families[p.Request.V6] = true
		s.Pools = append(s.Pools, p)
	}
	for i, r := range c.Routes {
		if !r.Dst.IsValid() {
			return nil, spec.Invalid("invalid route %d: no dst", i)
		}
	}
	s.Hash = remote.Hash([]any{c.Identity(), c.AddressSpace, s.Pools})
	return s, nil
}

func (c *Section) all() []Subnet {
	if c.isZero() && len(c.Pools) > 0 {
		return c.Pools
	}
	return append([]Subnet{c.Subnet}, c.Pools...)
}

func (s *Subnet) isZero() bool {
	return s.Subnet == "" && s.IPRange == "" && s.Gateway == "" && len(s.AuxAddresses) == 0 && !s.IPv6
}

func (s *Subnet) pool(options map[string]string) (*Pool, error) {
	p := &Pool{Request: cnm.RequestPoolRequest{Pool: s.Subnet, SubPool: s.IPRange, Options: options, V6: s.IPv6}}
	if p.Request.Options == nil {
		p.Request.Options = map[string]string{}
	}
	subnet, err := s.prefixes()
	if err != nil {
		return nil, err
	}
	if subnet.IsValid() {
		p.Request.V6 = subnet.Addr().Is6()
	}
	if s.Gateway != "" {
		if p.Gateway, err = p.within("gateway", s.Gateway, subnet); err != nil {
			return nil, err
		}
	}
	for name, text := range s.AuxAddresses {
		a, err := p.within("auxAddresses."+name, text, subnet)
		if err != nil {
			return nil, err
		}
		if p.Aux == nil {
			p.Aux = map[string]netip.Addr{}
		}
		p.Aux[name] = a
	}
	return p, nil
}

// prefixes checks subnet and ipRange.
func (s *Subnet) prefixes() (subnet netip.Prefix, err error) {
	if s.Subnet == "" {
		if s.IPRange != "" {
			return subnet, spec.Invalid("ipRange %s needs a subnet", s.IPRange)
		}
		return subnet, nil
	}
	if subnet, err = netip.ParsePrefix(s.Subnet); err != nil || subnet != subnet.Masked() {
		return subnet, spec.Invalid("invalid subnet %.80q: want a network in CIDR notation", s.Subnet)
	}
	if s.IPRange == "" {
		return subnet, nil
	}
	part, err := netip.ParsePrefix(s.IPRange)
	if err != nil || !subnet.Contains(part.Addr()) || part.Bits() < subnet.Bits() {
		return subnet, spec.Invalid("ipRange %.80q is not part of subnet %s", s.IPRange, subnet)
	}
	return subnet, nil
}

func (p *Pool) within(what, text string, subnet netip.Prefix) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is6() != p.Request.V6 || subnet.IsValid() && !subnet.Contains(a) {
		return a, spec.Invalid("%s %.80q is no address of the subnet %s", what, text, p.Request.Pool)
	}
	return a, nil
}
