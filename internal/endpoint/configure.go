// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// EnableIPv6 switches IPv6 on for the container's loopback and interface, and keeps addresses
// while the interface is down. If there is no IPv6 address, it does nothing. It also writes the
// settings in more.
func EnableIPv6(ifName string, ips []spec.IPConfig, more ...netstate.LinkIPv6) netstate.State {
	if !HasFamily(ips, false) {
		return nil
	}
	return netstate.State{netstate.IPv6{
		Where:  netstate.Sandbox,
		Needed: fmt.Sprintf("failed to enable IPv6 for interface %q", ifName),
		List: append([]netstate.LinkIPv6{
			{Link: "lo", Conf: nl.DisableIPv6, Value: 0},
			{Link: ifName, Conf: nl.DisableIPv6, Value: 0},
			{Link: ifName, Conf: nl.KeepAddrOnDown, Value: 1},
		}, more...),
	}}
}

// NoRouters stops router advertisements from configuring a link of the host, because a container
// could send them (CVE-2020-10749). It also writes the settings in more.
func NoRouters(link string, more ...netstate.LinkIPv6) netstate.Object {
	list := append([]netstate.LinkIPv6{{Link: link, Conf: nl.AcceptRA, Value: 0}}, more...)
	return netstate.IPv6{Where: netstate.Host, List: list}
}

// NoDuplicates lets a link use its IPv6 addresses at once, without duplicate address detection.
// It is for a veth pair whose two ends are ours. It covers the link-local address too: until the
// kernel has checked that address, which takes 1-2 s, it sends no neighbour solicitations, and so
// no packets.
func NoDuplicates(link string, ips []spec.IPConfig) []netstate.LinkIPv6 {
	if !HasFamily(ips, false) {
		return nil
	}
	return []netstate.LinkIPv6{{Link: link, Conf: nl.AcceptDAD, Value: 0}}
}

// Answering waits until the kernel answers neighbour solicitations for a link's IPv6
// addresses. Otherwise the first packet to them would be lost.
func Answering(where netstate.Where, link string, addrs ...netip.Addr) netstate.State {
	a := netstate.Answering{Where: where, Link: link}
	for _, addr := range addrs {
		if addr.Is6() {
			a.Addrs = append(a.Addrs, addr)
		}
	}
	if len(a.Addrs) == 0 {
		return nil
	}
	return netstate.State{a}
}

// Of returns the addresses and their gateways.
func Of(ips []spec.IPConfig) (addrs, gateways []netip.Addr) {
	for _, ip := range ips {
		addrs = append(addrs, ip.Address.Addr())
		if ip.Gateway.IsValid() && !slices.Contains(gateways, ip.Gateway) {
			gateways = append(gateways, ip.Gateway)
		}
	}
	return addrs, gateways
}

// Forwarding switches forwarding on for the families of the addresses, and records that it was
// off. link is the host's link through which the container's traffic enters. failed is the
// error's text.
func Forwarding(ips []spec.IPConfig, link, failed, network string) netstate.Object {
	return netstate.Forwarding{Link: link, IPv4: HasFamily(ips, true), IPv6: HasFamily(ips, false), Failed: failed, Network: network}
}

// HasFamily reports whether one of the addresses is IPv4 (v4 is true) or IPv6 (v4 is false).
func HasFamily(ips []spec.IPConfig, v4 bool) bool {
	for _, ip := range ips {
		if ip.Address.Addr().Is4() == v4 {
			return true
		}
	}
	return false
}

// Routes returns the routes of an IPAM result without duplicates. Routes without a next hop come
// first, because the next hops of others may be behind them.
func Routes(ifName string, result *spec.Result) (s []netstate.Route) {
	for _, r := range result.Routes {
		route := netstate.Route{
			Where: netstate.Sandbox, Link: ifName, Dst: r.Dst, Gateway: NextHop(r, result.IPs),
			MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority,
		}
		if r.Table != nil {
			route.Table = *r.Table
		}
		if r.Scope != nil {
			route.Scope = *r.Scope
		}
		if !slices.Contains(s, route) {
			s = append(s, route)
		}
	}
	order.Stable(s, func(a, b netstate.Route) int { return hops(a) - hops(b) })
	return s
}

// hops returns 1 if the route has a next hop.
func hops(r netstate.Route) int {
	return min(r.Gateway.BitLen(), 1)
}

// NextHop returns the next hop of a route. A route that has none of its own gets the first gateway
// of its family. If the family has no gateway, or the route is on the link, NextHop returns the
// zero Addr: the route uses the link directly.
func NextHop(r spec.Route, ips []spec.IPConfig) netip.Addr {
	if r.OnLink() {
		return netip.Addr{}
	}
	if r.GW.IsValid() {
		return r.GW
	}
	for _, ip := range ips {
		if ip.Gateway.IsValid() && ip.Gateway.Is4() == r.Dst.Addr().Is4() {
			return ip.Gateway
		}
	}
	return netip.Addr{}
}

// DNS returns the DNS section of a result. If the configuration has any DNS setting, even an
// empty list, it returns the configuration's. Otherwise it returns IPAM's.
func DNS(conf, ipam spec.DNS) spec.DNS {
	if conf.Nameservers != nil || conf.Search != nil || conf.Options != nil || conf.Domain != "" {
		return conf
	}
	return ipam
}

// Outside is the value of the key ipMasqOutside: prefixes that contain an address's network, as
// the network of many hosts contains the part of each host. Traffic from an address is
// masqueraded only if it leaves the prefix around the address. Without a prefix, it is
// masqueraded if it leaves the subnet.
type Outside []netip.Prefix

// Validate returns an error for a string that is not a prefix.
func (o Outside) Validate() error { return ValidateNetworks("ipMasqOutside", o) }

// ValidateNetworks returns an error for a value of a key that is not the prefix of a network.
func ValidateNetworks(key string, list []netip.Prefix) error {
	for _, p := range list {
		switch {
		case !p.IsValid() || p.Bits() == 0 || p.Addr().Is4In6():
			return spec.Invalid("invalid %s %q: want the prefix of a network, such as 10.200.0.0/16", key, p)
		case p != p.Masked():
			return spec.Invalid("invalid %s %q: write %s", key, p, p.Masked())
		}
	}
	return nil
}

// around returns an address with the length of the widest prefix that contains it: the address's
// own prefix, or a listed one. If a listed prefix contains the address, listed is true.
func (o Outside) around(address netip.Prefix) (wide netip.Prefix, listed bool) {
	wide = address
	for _, p := range o {
		if !p.Contains(address.Addr()) {
			continue
		}
		if listed = true; p.Bits() < wide.Bits() {
			wide = netip.PrefixFrom(address.Addr(), p.Bits())
		}
	}
	return wide, listed
}

// Masquerade returns elements for the firewall. They replace the source address of traffic that
// leaves the addresses' networks by the host's address. If all is set, there are elements for
// every address, otherwise only for addresses in a prefix of outside. The elements belong to the
// attachment. So they do not affect other networks, even if one network contains the other.
func Masquerade(ips []spec.IPConfig, all bool, outside Outside, comment string) (s netstate.State) {
	for _, ip := range ips {
		network, listed := outside.around(ip.Address)
		if !all && !listed {
			continue
		}
		for _, e := range nft.Masqueraded(network, comment) {
			s = append(s, netstate.Element{Element: e})
		}
	}
	return s
}

// Egress returns elements that replace the usual source address of a state's masqueraded packets.
// The new addresses come from the file of the pod's namespace, which the agent of the Kubernetes
// node writes. If there is no file, Egress costs one failed open.
func Egress(r *plugin.Request, s netstate.State) (out netstate.State) {
	args, err := r.CNIArgs()
	namespace, _, pod := strings.Cut(spec.Pod(args), "/")
	if err != nil || !pod {
		return nil
	}
	noted, err := record.EgressOf(r.Session.Paths, namespace)
	if err != nil {
		kernel.Warn(r, fmt.Errorf("%w: the pod leaves with the node's address", err))
	}
	for _, o := range s {
		if e, ok := o.(netstate.Element); ok {
			if egress, ok := e.Leaving(noted.Use); ok {
				out = append(out, netstate.Element{Element: egress})
			}
		}
	}
	return out
}

// attachedEgress returns the egress elements of a record. The agent may have changed them after the
// ADD.
func attachedEgress(rec *record.Record) (out netstate.State) {
	for _, e := range rec.Elements {
		if _, ok := e.Egress(); ok {
			out = append(out, netstate.Element{Element: e})
		}
	}
	return out
}
