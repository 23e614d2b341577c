// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// pool is a pool and its used addresses.
type pool struct {
	prefix, part netip.Prefix
	used         map[netip.Addr]bool
}

// IPAMCapabilities implements cnm.IPAMDriver.
func (d *Driver) IPAMCapabilities(context.Context) (*cnm.IPAMCapabilities, error) {
	return &cnm.IPAMCapabilities{RequiresMACAddress: d.RequiresMAC, RequiresRequestReplay: d.RequiresReplay}, nil
}

// AddressSpaces implements cnm.IPAMDriver.
func (d *Driver) AddressSpaces(context.Context) (*cnm.AddressSpaces, error) {
	return &cnm.AddressSpaces{LocalDefaultAddressSpace: "lablocal", GlobalDefaultAddressSpace: "lablocal"}, nil
}

// RequestPool implements cnm.IPAMDriver.
func (d *Driver) RequestPool(_ context.Context, in *cnm.RequestPoolRequest) (*cnm.RequestPoolResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := in.Pool
	if d.ZeroPool {
		text = map[bool]string{false: "0.0.0.0/0", true: "::/0"}[in.V6]
	}
	d.asked++
	switch {
	case text == "" && d.NewPools && !in.V6:
		text = fmt.Sprintf("10.%d.0.0/16", 76+d.asked)
	case text == "":
		text = map[bool]string{false: "10.77.0.0/16", true: "fd77::/64"}[in.V6]
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return nil, err
	}
	id := "lab-" + strings.ReplaceAll(text, "/", "_")
	if d.NewIDs {
		id += fmt.Sprint("-", d.asked)
	}
	if d.pools[id] != nil {
		return nil, fmt.Errorf("pool %s is in use", text)
	}
	p := &pool{prefix: prefix, part: prefix, used: map[netip.Addr]bool{prefix.Addr(): true}}
	if in.SubPool != "" {
		if p.part, err = netip.ParsePrefix(in.SubPool); err != nil {
			return nil, err
		}
	}
	if d.pools == nil {
		d.pools = map[string]*pool{}
	}
	d.pools[id] = p
	out := &cnm.RequestPoolResponse{PoolID: id, Pool: prefix, Data: map[string]string{}}
	if d.GatewayInPool {
		gw := prefix.Addr().Next()
		p.used[gw] = true
		out.Data[cnm.OptionGateway] = netip.PrefixFrom(gw, prefix.Bits()).String()
	}
	return out, nil
}

// ReleasePool implements cnm.IPAMDriver.
func (d *Driver) ReleasePool(_ context.Context, in *cnm.ReleasePoolRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pools[in.PoolID] == nil {
		return fmt.Errorf("unknown pool %s", in.PoolID)
	}
	delete(d.pools, in.PoolID)
	return nil
}

// RequestAddress implements cnm.IPAMDriver.
func (d *Driver) RequestAddress(_ context.Context, in *cnm.RequestAddressRequest) (*cnm.RequestAddressResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pools[in.PoolID]
	if p == nil {
		return nil, fmt.Errorf("unknown pool %s", in.PoolID)
	}
	gateway := in.Options[cnm.OptionAddressType] == cnm.OptionGateway
	if d.RequiresMAC && in.Options[cnm.OptionMAC] == "" && !gateway && !in.Address.IsValid() {
		return nil, errors.New("no MAC address")
	}
	a := in.Address
	if d.ZeroPool {
		return p.single(a, gateway)
	}
	if !a.IsValid() {
		a = p.free(gateway)
	}
	if !p.prefix.Contains(a) || p.used[a] {
		return nil, fmt.Errorf("address %s is not available", a)
	}
	p.used[a] = true
	return &cnm.RequestAddressResponse{Address: netip.PrefixFrom(a, p.prefix.Bits()), Data: map[string]string{}}, nil
}

// single gives an address if the driver has the option ZeroPool.
func (p *pool) single(a netip.Addr, gateway bool) (*cnm.RequestAddressResponse, error) {
	v6 := p.prefix.Addr().Is6()
	if gateway {
		a = netip.MustParseAddr(map[bool]string{false: "169.254.1.1", true: "fd77:1::1"}[v6])
	}
	if !a.IsValid() {
		part := pool{part: netip.MustParsePrefix(map[bool]string{false: "192.168.77.0/24", true: "fd77::/64"}[v6]), used: p.used}
		a = part.free(false)
	}
	if p.used[a] {
		return nil, fmt.Errorf("address %s is not available", a)
	}
	p.used[a] = true
	return &cnm.RequestAddressResponse{Address: netip.PrefixFrom(a, a.BitLen()), Data: map[string]string{}}, nil
}

// free finds an unused address. A gateway may be outside the pool's range for containers.
func (p *pool) free(gateway bool) netip.Addr {
	in := p.part
	if gateway {
		in = p.prefix
	}
	for a := in.Addr().Next(); in.Contains(a); a = a.Next() {
		if !p.used[a] {
			return a
		}
	}
	return netip.Addr{}
}

// ReleaseAddress implements cnm.IPAMDriver.
func (d *Driver) ReleaseAddress(_ context.Context, in *cnm.ReleaseAddressRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pools[in.PoolID]
	if p == nil {
		return fmt.Errorf("unknown pool %s", in.PoolID)
	}
	if !p.used[in.Address] {
		return fmt.Errorf("address %s is not in use", in.Address)
	}
	delete(p.used, in.Address)
	return nil
}

// Addresses counts the used addresses, including gateways.
func (d *Driver) Addresses() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pools {
		n += len(p.used) - 1 // without the network's own address
	}
	return n
}

// Pools counts the requested pools.
func (d *Driver) Pools() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.pools)
}
