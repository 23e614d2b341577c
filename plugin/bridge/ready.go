// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// ready refuses what keeps every ADD from giving the bridge its gateways. ADD may use any
// range of a set: one that fits is enough.
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
			if err = at.takes(p); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// gatewaySets returns the gateways that an ADD may need, for each set of ranges. Other IPAM
// plugins return their addresses only with the ADD.
func (c *Conf) gatewaySets(r *plugin.Request) (sets [][]netip.Prefix) {
	if !c.IsGateway || c.IPAM.Type != "host-local" {
		return nil
	}
	judged := &plugin.Request{Call: r.Call, Plugin: r.Plugin, Head: r.Head, Session: r.Session, InList: new(plugin.InList)}
	for _, sample := range judged.Samples() {
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

// gatewayNow is the gateway's link as it is, or as the kernel would create it.
type gatewayNow struct {
	name   string
	force  bool
	addrs  []nl.Addr
	noIPv6 string // the sysctl that switches IPv6 off
	mtu    int    // 0: a first port may change it
}

func (c *Conf) gatewayNow(r *plugin.Request, k *kernel.Kernel, host *nl.Conn) (at gatewayNow, err error) {
	at.name, at.force = c.gatewayLink(), c.ForceAddress
	link, err := host.Link(at.name)
	if nl.IsNotFound(err) {
		const key = "net/ipv6/conf/default/disable_ipv6"
		if off, err := host.Sysctl(key); err == nil && off == "1" {
			at.noIPv6 = key
		}
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

// keepsMTU reports whether a new port leaves a small MTU unchanged. It does on a bridge with
// other ports, and on a bridge of this network whose MTU was changed later. A bridge that
// another program made small gets the MTU of its first port.
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

// takes refuses a gateway's address that the kernel would refuse for the link.
func (at gatewayNow) takes(p netip.Prefix) error {
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
		return spec.Invalid("%q cannot have the address %s: IPv6 is switched off", at.name, p).WithDetails("sysctl -w %s=0", at.noIPv6)
	case at.mtu != 0 && at.mtu < endpoint.LeastMTU6:
		return spec.Invalid("%q cannot have the address %s: its MTU is %d, and IPv6 needs at least %d", at.name, p, at.mtu, endpoint.LeastMTU6).
			WithDetails("ip link set %s mtu 1500; a port of it may have that MTU, too", at.name)
	}
	return nil
}
