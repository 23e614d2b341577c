// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/spec"
)

// space is the name of both the local and the global address space. They must be the same:
// otherwise dockerd repeats its request without end if a pool overlaps a route of the host.
const space = "patchbay"

// Driver is also an IPAM driver.
var _ cnm.IPAMDriver = (*Driver)(nil)

// IPAMCapabilities implements cnm.IPAMDriver. The driver requires the MAC address in requests,
// because it shows which requests belong to the same endpoint.
func (d *Driver) IPAMCapabilities(context.Context) (*cnm.IPAMCapabilities, error) {
	return &cnm.IPAMCapabilities{RequiresMACAddress: true}, nil
}

// AddressSpaces implements cnm.IPAMDriver.
func (d *Driver) AddressSpaces(context.Context) (*cnm.AddressSpaces, error) {
	return &cnm.AddressSpaces{LocalDefaultAddressSpace: space, GlobalDefaultAddressSpace: space}, nil
}

// RequestPool implements cnm.IPAMDriver. --ipam-opt cni.network=NAME names a configuration, which
// determines the pool. --subnet may only repeat the configuration's subnet.
func (d *Driver) RequestPool(ctx context.Context, in *cnm.RequestPoolRequest) (*cnm.RequestPoolResponse, error) {
	if in.SubPool != "" {
		return nil, errors.New("--ip-range cannot be set: the CNI configuration decides about the ranges")
	}
	o, err := parseOptions(in.Options)
	if err != nil {
		return nil, fmt.Errorf("--ipam-opt: %w", err)
	}
	list, err := d.resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := d.notAgain(in); err != nil {
		return nil, fmt.Errorf("network %s: %w", list.Name, err)
	}
	p := &state.Pool{ID: rand.Text(), Network: list.Name, Config: encodeList(list), Options: maps.Clone(in.Options), V6: in.V6, Since: time.Now()}
	if err := poolOf(p, list, in.Pool); err != nil {
		return nil, fmt.Errorf("network %s: %w", list.Name, err)
	}
	if err := d.answers(ctx, p); err != nil {
		return nil, fmt.Errorf("network %s: %w", list.Name, err)
	}
	out := &cnm.RequestPoolResponse{PoolID: p.ID, Pool: p.Prefix}
	if hasGateway(list, in.V6) { // only a Docker before 28 would otherwise ask for a gateway
		out.Data = map[string]string{cnm.OptionGateway: p.Gateway.String()}
	}
	return out, d.state.Pools.Save(p)
}

// answers checks that the IPAM plugin exists and can be called. If it cannot be called now, an
// address that Docker requests later could never be released.
func (d *Driver) answers(ctx context.Context, p *state.Pool) error {
	list, err := leaseList(&state.Allocation{Config: p.Config})
	if err == nil {
		_, err = d.run[lease].Validate(ctx, list)
	}
	return err
}

// If Docker sends more than maxRepeats equal requests for a pool within repeatTime, it is in a
// loop. Such a loop sends a thousand requests per second.
const (
	maxRepeats = 8
	repeatTime = 10 * time.Second
)

// notAgain ends a loop of Docker before 28. If a pool overlaps a route of the host, such a Docker
// asks for another pool without end. Every CNI network that is in use on this host has such a
// route.
func (d *Driver) notAgain(in *cnm.RequestPoolRequest) error {
	if in.Pool != "" {
		return nil
	}
	all, err := d.state.Pools.List()
	n := 0
	for _, p := range all {
		if p.V6 == in.V6 && maps.Equal(p.Options, in.Options) && time.Since(p.Since) < repeatTime {
			n++
		}
	}
	if n >= maxRepeats {
		return errors.New("the host has a route to its subnet, and this Docker requests another one: use --subnet with the configuration's subnet")
	}
	return err
}

// ipamSection holds the keys of an ipam section that the driver reads, which are host-local's.
type ipamSection struct {
	Type string `json:"type"`
	ipamRange
	Ranges [][]ipamRange `json:"ranges"`
}

type ipamRange struct {
	Subnet  string `json:"subnet"`
	Gateway string `json:"gateway"`
}

func sectionOf(list *chain.List) (*ipamSection, error) {
	var conf struct {
		IPAM ipamSection `json:"ipam"`
	}
	if err := json.Unmarshal(first(list).Raw, &conf); err != nil {
		return nil, fmt.Errorf("decode ipam: %w", err)
	}
	switch conf.IPAM.Type {
	case "":
		return nil, errors.New("its first plugin has no ipam section")
	case "dhcp":
		return nil, errors.New("DHCP works through the interface, which does not exist yet: use --ipam-driver null")
	}
	return &conf.IPAM, nil
}

// poolOf sets the pool's subnet and gateway for its family. If the IPAM plugin's ranges cannot
// be read, the pool contains every address.
func poolOf(p *state.Pool, list *chain.List, wanted string) error {
	section, err := sectionOf(list)
	if err != nil {
		return err
	}
	p.Prefix, p.Gateway = spec.DefaultDst(!p.V6), spec.DefaultDst(!p.V6)
	ranges := []ipamRange{section.ipamRange}
	for _, set := range section.Ranges {
		ranges = append(ranges, set...)
	}
	known := false
	for _, r := range ranges {
		subnet, err := netip.ParsePrefix(r.Subnet)
		if err != nil {
			continue
		}
		known = true
		if subnet.Addr().Is6() == p.V6 {
			p.Prefix, p.Gateway = subnet.Masked(), gatewayOf(subnet, r.Gateway)
			break
		}
	}
	if known && p.Prefix.Bits() == 0 {
		return fmt.Errorf("no range of the %s family", map[bool]string{true: "IPv6", false: "IPv4"}[p.V6])
	}
	return matches(p, wanted)
}

// gatewayOf parses a gateway. If there is none, it returns host-local's default, the first
// address of the subnet.
func gatewayOf(subnet netip.Prefix, text string) netip.Prefix {
	gw, err := netip.ParseAddr(text)
	if err != nil {
		gw = subnet.Masked().Addr().Next()
	}
	return netip.PrefixFrom(gw, subnet.Bits())
}

// matches returns an error if --subnet is not the subnet of the configuration.
func matches(p *state.Pool, wanted string) error {
	if wanted == "" {
		return nil
	}
	subnet, err := netip.ParsePrefix(wanted)
	if err != nil {
		return fmt.Errorf("--subnet: %w", err)
	}
	if p.Prefix.Bits() == 0 && subnet.Addr().Is6() == p.V6 {
		p.Prefix, p.Gateway = subnet.Masked(), gatewayOf(subnet, "")
	}
	if p.Prefix != subnet.Masked() {
		return fmt.Errorf("--subnet %s: the configuration has %s", subnet, p.Prefix)
	}
	return nil
}

// ReleasePool implements cnm.IPAMDriver.
func (d *Driver) ReleasePool(_ context.Context, in *cnm.ReleasePoolRequest) error {
	return d.state.Pools.Drop(in.PoolID)
}

// reserved answers Docker's request for the gateway's address, which the configuration
// determines.
func reserved(p *state.Pool, wanted netip.Addr) (*cnm.RequestAddressResponse, error) {
	if wanted.IsValid() && p.Gateway.Bits() > 0 && wanted != p.Gateway.Addr() {
		return nil, fmt.Errorf("--gateway %s: the configuration has %s", wanted, p.Gateway.Addr())
	}
	return &cnm.RequestAddressResponse{Address: p.Gateway}, nil
}

// Driver also implements GwAllocCheck.
var _ cnm.GatewayChecker = (*Driver)(nil)

// GwAllocCheck implements cnm.GatewayChecker. It says for which families the network needs no
// gateway. Docker 28 and later call it before they take an address of the pool for a gateway.
// They call it before CreateNetwork and with the same options.
func (d *Driver) GwAllocCheck(ctx context.Context, in *cnm.GwAllocCheckRequest) (*cnm.GwAllocCheckResponse, error) {
	_, list, err := d.configured(ctx, in.Options)
	if err != nil {
		return nil, err
	}
	return &cnm.GwAllocCheckResponse{SkipIPv4: !hasGateway(list, false), SkipIPv6: !hasGateway(list, true)}, nil
}

// gatewayConf holds the keys that give a gateway to the first plugin.
type gatewayConf struct {
	IsGateway        bool `json:"isGateway"`
	IsDefaultGateway bool `json:"isDefaultGateway"`
	IPAM             struct {
		Type      string      `json:"type"`
		Addresses []ipamRange `json:"addresses"`
		Routes    []struct {
			Dst string `json:"dst"`
			GW  string `json:"gw"`
		} `json:"routes"`
	} `json:"ipam"`
}

// layer2 lists the plugins that have a gateway only if their ipam section names one. inTheirOwn
// lists the IPAM plugins whose section names every gateway. host-local is not among them, because
// by default it reserves the first address of a subnet.
var (
	layer2     = [...]string{"bridge", "macvlan", "ipvlan", "vlan", "host-device", "dummy", "tap"}
	inTheirOwn = [...]string{"", "static"}
)

// hasGateway reports whether an address of the subnet belongs to a gateway. No container may get
// such an address. If the configuration cannot be read, hasGateway returns true: to reserve an
// address without need does less harm than to use one twice.
func hasGateway(list *chain.List, v6 bool) bool {
	p := first(list)
	var conf gatewayConf
	if json.Unmarshal(p.Raw, &conf) != nil || !slices.Contains(layer2[:], p.Type) || !slices.Contains(inTheirOwn[:], conf.IPAM.Type) {
		return true
	}
	if p.Type == "bridge" && (conf.IsGateway || conf.IsDefaultGateway) {
		return true
	}
	named := []string{}
	for _, a := range conf.IPAM.Addresses {
		named = append(named, a.Gateway)
	}
	for _, r := range conf.IPAM.Routes {
		dst, err := netip.ParsePrefix(r.Dst)
		if err == nil && dst.Bits() == 0 && dst.Addr().Is6() == v6 {
			return true
		}
		named = append(named, r.GW)
	}
	return slices.ContainsFunc(named, func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && a.Is6() == v6
	})
}
