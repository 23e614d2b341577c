// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// refuseHostAddrs returns an error (code 7) if a container would get an address that the host has on the bridge, or gets
// there as a gateway. Nobody could reach such a container, and rules for its address would apply to the host. IPAM plugins that
// pass on what others say, such as dhcp, may give such an address. It changes nothing.
func (c *Conf) refuseHostAddrs(env *netstate.Env, ips []spec.IPConfig) error {
	addrs, err := c.hostAddrs(env, ips)
	if err != nil {
		return err
	}
	for _, ip := range ips {
		if a := ip.Address.Addr(); slices.Contains(addrs, a) {
			return spec.Invalid("cannot give the container the address %s: the host has it on %s", a, c.gatewayLink()).
				WithDetails("give the container an address of its own: the IPAM plugin %s, or the server that it asks, must leave out %s", c.IPAM.Type, a)
		}
	}
	return nil
}

// hostAddrs returns the addresses that the host will have on the bridge: the gateways, and those that it has now. With
// forceAddress, the gateways may replace those.
func (c *Conf) hostAddrs(env *netstate.Env, ips []spec.IPConfig) (list []netip.Addr, err error) {
	if c.IsGateway {
		for _, p := range c.gateways(ips) {
			list = append(list, p.Addr())
		}
		if c.ForceAddress {
			return list, nil
		}
	}
	link, err := env.Link(netstate.Host, c.gatewayLink())
	if nl.IsNotFound(err) {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	addrs, err := env.Host.Addrs(link.Attrs().Index)
	for _, a := range addrs {
		list = append(list, a.Prefix.Addr())
	}
	return list, err
}
