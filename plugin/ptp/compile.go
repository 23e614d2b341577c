// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/spec"
)

// These are the indexes of the result's interfaces. Callers rely on them.
const (
	atHost = iota
	atContainer
)

// input is everything that compile reads.
type input struct {
	conf    *Conf
	ipam    *spec.Result
	pair    *endpoint.Pair
	comment string // comment of the firewall elements
	network string
}

// compile computes the desired state and the result. The result lacks the MTU, which only the
// kernel knows. compile changes nothing.
func compile(in input) (netstate.State, *spec.Result, error) {
	if len(in.ipam.IPs) == 0 {
		return nil, nil, spec.Invalid("IPAM plugin returned missing IP config")
	}
	result := &spec.Result{
		Interfaces: []spec.Interface{
			atHost:      {Name: in.pair.Host, Mac: in.pair.HostMAC.String()},
			atContainer: {Name: in.pair.IfName, Mac: in.pair.MAC.String(), Sandbox: in.pair.NetNS},
		},
		Routes: in.ipam.Routes,
		DNS:    endpoint.DNS(in.conf.DNS, in.ipam.DNS),
	}
	for _, ip := range in.ipam.IPs {
		if !ip.Gateway.IsValid() {
			return nil, nil, spec.Invalid("IPAM plugin returned no gateway for %s: ptp needs one", ip.Address)
		}
		at := atContainer
		ip.Interface = &at
		result.IPs = append(result.IPs, ip)
	}
	veth := in.pair.Veth(in.conf.MTU)
	veth.Down = true
	veth.NoIPv6 = !slices.ContainsFunc(result.IPs, func(ip spec.IPConfig) bool { return ip.Address.Addr().Is6() })
	var s netstate.State
	for _, p := range in.conf.Unreachable {
		s = append(s, netstate.Unreachable{Dst: p, Protocol: netstate.PodsProtocol})
	}
	s = append(s,
		endpoint.Forwarding(result.IPs, in.pair.Host, "Could not enable IP forwarding", in.network),
		veth,
		endpoint.NoRouters(in.pair.Host, endpoint.NoDuplicates(in.pair.Host, result.IPs)...))
	s = append(s, container(in.pair.IfName, result)...)
	s = append(s, netstate.Up{Where: netstate.Host, Link: in.pair.Host})
	s = append(s, host(in.pair.Host, result.IPs)...)
	addrs, gateways := endpoint.Of(result.IPs)
	s = append(s, netstate.PortUp{Where: netstate.Sandbox, Link: in.pair.IfName})
	s = append(s, endpoint.Answering(netstate.Sandbox, in.pair.IfName, addrs...)...)
	s = append(s, endpoint.Answering(netstate.Host, in.pair.Host, gateways...)...)
	s = append(s, endpoint.Masquerade(result.IPs, in.conf.IPMasq, in.conf.IPMasqOutside, in.comment)...)
	return s, result, nil
}

// container gives the interface its addresses. container leaves out the kernel's route to the
// subnet, because the whole subnet is behind the gateway. The gateway itself is on the link.
func container(name string, result *spec.Result) netstate.State {
	s := endpoint.EnableIPv6(name, result.IPs, endpoint.NoDuplicates(name, result.IPs)...)
	for _, ip := range result.IPs {
		s = append(s, netstate.Addr{Where: netstate.Sandbox, Link: name, Prefix: ip.Address, NoRoute: true})
	}
	s = append(s, netstate.Up{Where: netstate.Sandbox, Link: name})
	for _, r := range subnetRoutes(name, result.IPs) {
		s = append(s, r)
	}
	for _, r := range endpoint.Routes(name, result) {
		r.OnLink = needsOnLink(r.Gateway, result.IPs)
		s = append(s, r)
	}
	return s
}

// subnetRoutes returns the routes to the gateways, and the routes through the gateways to the
// subnets. No route appears twice.
func subnetRoutes(name string, ips []spec.IPConfig) (routes []netstate.Route) {
	done := make(map[netip.Prefix]bool)
	add := func(r netstate.Route) {
		if !done[r.Dst] {
			done[r.Dst] = true
			routes = append(routes, r)
		}
	}
	for _, ip := range ips {
		r := netstate.Route{Where: netstate.Sandbox, Link: name, Src: ip.Address.Addr()}
		r.Dst, r.Scope = single(ip.Gateway), unix.RT_SCOPE_LINK
		add(r)
		if !ip.Address.IsSingleIP() {
			r.Dst, r.Scope, r.Gateway = ip.Address.Masked(), 0, ip.Gateway
			add(r)
		}
	}
	return routes
}

// needsOnLink reports whether a route through gw needs the flag onlink. The kernel accepts a next
// hop only if a route of link scope leads to it. In a container's subnet, only the container's
// own gateway has such a route.
func needsOnLink(gw netip.Addr, ips []spec.IPConfig) (within bool) {
	if !gw.IsValid() {
		return false
	}
	for _, ip := range ips {
		if ip.Gateway == gw {
			return false
		}
		within = within || ip.Address.Masked().Contains(gw)
	}
	return within
}

// host gives the host's end the gateways' addresses and the routes to the container's
// addresses.
func host(name string, ips []spec.IPConfig) (s netstate.State) {
	done := make(map[netip.Addr]bool)
	for _, ip := range ips {
		if !done[ip.Gateway] {
			done[ip.Gateway] = true
			s = append(s, netstate.Addr{Where: netstate.Host, Link: name, Prefix: single(ip.Gateway), NoRoute: true})
		}
		s = append(s, routeTo(name, ip.Address.Addr()))
	}
	return s
}

// routeTo returns the route from the host to an address. If an attachment that is just being
// removed has a route to the address, routeTo's route replaces it.
func routeTo(name string, a netip.Addr) netstate.Route {
	route := netstate.Route{Where: netstate.Host, Link: name, Dst: single(a), Replace: true}
	if a.Is4() {
		route.Scope = unix.RT_SCOPE_HOST
	}
	return route
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Lacking returns what `patchbay repair` must restore on the host for a living attachment: its
// routes. If another attachment has a route to the address, Lacking leaves that route alone.
func Lacking(env *netstate.Env, rec *record.Record, result *spec.Result) (s netstate.State, err error) {
	if len(rec.Links) == 0 || result == nil {
		return nil, nil
	}
	link, err := env.Link(netstate.Host, rec.Links[0])
	if nl.IsNotFound(err) {
		return nil, nil // without the link, no route is possible
	}
	if err != nil || link.Attrs().Alias != rec.Owner.Alias() {
		return nil, err
	}
	for _, ip := range result.IPs {
		if in := result.Of(ip); in == nil || in.Name != rec.IfName || in.Sandbox == "" {
			continue
		}
		route := routeTo(rec.Links[0], ip.Address.Addr())
		there, err := route.Served(env)
		if err != nil {
			return nil, err
		}
		if !there {
			s = append(s, route)
		}
	}
	return s, nil
}

// repairable marks routes as ones that `patchbay repair` restores. CHECK then advises the command.
func repairable(s netstate.State) {
	for i, o := range s {
		if route, ok := o.(netstate.Route); ok && route.Where == netstate.Host {
			route.Repairable = true
			s[i] = route
		}
	}
}
