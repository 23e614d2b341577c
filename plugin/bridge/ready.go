// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// ready returns an error if no ADD could give the bridge its gateways. An ADD may use any
// range of a set, so one range that fits is enough.
func (c *Conf) ready(r *plugin.Request, k *kernel.Kernel, host *nl.Conn) error {
	sets := c.gatewaySets(r)
	if len(sets) == 0 {
		return nil
	}
	at, err := c.gatewayNow(r, k, host)
	if err != nil {
		return err
	}
	for _, set := range sets {
		for _, p := range set {
			if err = at.checkAddress(p); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// gatewaySets returns the gateways that an ADD may need, for each range set. gatewaySets knows
// only the ranges of host-local; other IPAM plugins return their addresses only during the ADD.
func (c *Conf) gatewaySets(r *plugin.Request) (sets [][]netip.Prefix) {
	if !c.IsGateway {
		return nil
	}
	for _, sample := range endpoint.Answers(r, c.IPAM.Type) {
		ips, _ := addressing(c, sample)
		for i, p := range c.gateways(ips) {
			if i == len(sets) {
				sets = append(sets, nil)
			}
			sets[i] = append(sets[i], p)
		}
	}
	return sets
}

// gatewayNow describes the gateway's link as it is now. If the link does not exist, it
// describes the link as the kernel would create it.
type gatewayNow struct {
	name   string
	force  bool
	addrs  []nl.Addr
	noIPv6 string // the sysctl that disables IPv6
	mtu    int    // 0 if the first port may change it
}

func (c *Conf) gatewayNow(r *plugin.Request, k *kernel.Kernel, host *nl.Conn) (at gatewayNow, err error) {
	at.name, at.force = c.gatewayLink(), c.ForceAddress
	link, err := host.Link(at.name)
	if nl.IsNotFound(err) {
		at.noIPv6 = endpoint.NoIPv6(host)
		return at, nil
	}
	if err != nil {
		return at, err
	}
	if off, ok := host.IPv6Setting(link.Attrs().Index, nl.DisableIPv6); ok && off == 1 {
		at.noIPv6 = "net/ipv6/conf/" + at.name + "/disable_ipv6"
	}
	keeps, err := c.keepsMTU(r, k, host, link)
	if err != nil {
		return at, err
	}
	if keeps {
		at.mtu = link.Attrs().MTU
	}
	at.addrs, err = host.Addrs(link.Attrs().Index)
	return at, err
}

// keepsMTU reports whether a bridge with a small MTU keeps that MTU when a port is added. A
// bridge with other ports keeps it. So does a bridge that this network made, because then an
// operator changed the MTU later. Any other bridge was made by another program and takes the MTU
// of its first port.
func (c *Conf) keepsMTU(r *plugin.Request, k *kernel.Kernel, host *nl.Conn, link netlink.Link) (bool, error) {
	if c.Vlan != 0 || link.Attrs().MTU >= endpoint.LeastMTU6 {
		return true, nil
	}
	index := link.Attrs().Index
	note, err := k.Records.Made(record.MadeBridge(c.Bridge))
	if err == nil && note != nil && note.Index == index && note.Network == r.Network {
		return true, nil
	}
	links, err := host.LinkList()
	return slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex == index }), err
}

// checkAddress returns an error if the kernel would refuse a gateway's address on the link.
func (at gatewayNow) checkAddress(p netip.Prefix) error {
	others, there := netstate.Gateway{Prefix: p}.Others(at.addrs)
	switch {
	case there:
		return nil
	case len(others) > 0 && !at.force:
		return spec.Invalid("%q already has an IP address different from %v", at.name, p).
			WithDetails("it is %s: ip addr del %s dev %s, or set forceAddress", others[0], others[0], at.name)
	case p.Addr().Is4():
		return nil
	case at.noIPv6 != "":
		return endpoint.IPv6IsOff(at.name, p, at.noIPv6)
	case at.mtu != 0 && at.mtu < endpoint.LeastMTU6:
		return spec.Invalid("%q cannot have the address %s: its MTU is %d, and IPv6 needs at least %d", at.name, p, at.mtu, endpoint.LeastMTU6).
			WithDetails("ip link set %s mtu 1500; if a port of it has the small MTU, set that port's MTU too", at.name)
	}
	return nil
}

// isolation returns the objects that stop the host from forwarding to and from an internal
// network. All attachments of the bridge share them, because the firewall can identify forwarded
// packets only by the bridge. If the gateway is in a VLAN, the objects cover the bridge too,
// because the bridge may be in the same VLAN.
func isolation(in input) (s netstate.State) {
	if !in.conf.Internal {
		return nil
	}
	links := []string{in.conf.Bridge}
	if in.conf.Vlan != 0 {
		links = append(links, in.conf.gatewayLink())
	}
	for _, link := range links {
		s = append(s, netstate.HeldFact{
			Fact:  record.Fact{Name: record.InternalFact(link), Elements: nft.Internal(link, in.network)},
			Owner: in.pair.Owner,
		})
	}
	return s
}

// spans returns the objects that let an internal network forward between its parts on several hosts. The
// prefix length of the container's address is that of a host's block.
func spans(in input, ips []spec.IPConfig) (s netstate.State) {
	if !in.conf.Internal {
		return nil
	}
	for _, p := range in.conf.Span {
		for _, ip := range ips {
			if bits := ip.Address.Bits(); p.Contains(ip.Address.Addr()) {
				s = append(s, netstate.HeldFact{
					Fact:  record.Fact{Name: record.SpanFact(p, bits), Elements: []nft.Element{nft.Span(p, bits, in.network)}},
					Owner: in.pair.Owner,
				})
			}
		}
	}
	return s
}

// fits returns an error in two cases. In the first, the network is not internal but the bridge
// belongs to an internal network. In the second, the network is internal but its bridge is in a
// VRF; the firewall would see the packets on another link.
func (c *Conf) fits(k *kernel.Kernel) error {
	link, err := c.find(k)
	if err != nil {
		return err
	}
	if !c.Internal {
		if k.Records.HasHolder(record.InternalFact(c.gatewayLink())) {
			return spec.Invalid("bridge %q belongs to an internal network, and this one is not internal", c.Bridge).
				WithDetails("give one of them a bridge of its own; patchbay gc --apply removes dead containers of the other")
		}
		return nil
	}
	if link != nil && link.Attrs().MasterIndex != 0 {
		return spec.Invalid("bridge %q cannot be internal: it is in a VRF", c.Bridge).
			WithDetails("the firewall would see forwarded packets on the VRF; run ip link set %s nomaster", c.Bridge)
	}
	return nil
}

// find returns the bridge, or nil if it does not exist yet. The configuration may use an
// alternative name of the bridge. Then find writes the bridge's real name into the configuration,
// because the firewall and the records know only that name.
func (c *Conf) find(k *kernel.Kernel) (netlink.Link, error) {
	host, err := k.Host()
	if err != nil {
		return nil, err
	}
	link, err := host.Link(c.Bridge)
	if nl.IsNotFound(err) {
		return nil, nil //nolint:nilnil // an ADD makes it
	}
	if err != nil {
		return nil, err
	}
	c.Bridge = link.Attrs().Name
	return link, nil
}

// alone returns an error if a bridge should become internal while containers of an open network
// use it. These containers would lose their connection to the outside.
func (c *Conf) alone(k *kernel.Kernel) error {
	all, _, _ := k.Records.Scan("") // a record that cannot be read names no bridge
	for _, rec := range all {
		if rec.Plugin != name || rec.Bridge != c.Bridge || slices.Contains(rec.Shared, record.InternalFact(c.Bridge)) {
			continue
		}
		if k.Lives(rec) {
			return spec.Invalid("bridge %q cannot be internal: container %s of network %s is on it and is not internal", c.Bridge, rec.ContainerID, rec.Network).
				WithDetails("give the internal network a bridge of its own")
		}
	}
	return nil
}
