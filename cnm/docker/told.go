// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/docker/state"
)

// addresses are the two that Docker can be told of: the first of each family.
// Without a route of its own for the subnet, as ptp has it, an address is told
// as a single one: libnetwork would make the subnet on-link.
func addresses(s *state.Snapshot) (v4, v6 netip.Prefix) {
	for _, a := range s.Addrs {
		if !onLink(s, a.Masked()) {
			a = netip.PrefixFrom(a.Addr(), a.Addr().BitLen())
		}
		switch {
		case a.Addr().Is4() && !v4.IsValid():
			v4 = a
		case a.Addr().Is6() && !v6.IsValid():
			v6 = a
		}
	}
	return v4, v6
}

// onLink says whether a subnet is reached without a gateway.
func onLink(s *state.Snapshot, subnet netip.Prefix) bool {
	if subnet.IsSingleIP() {
		return true
	}
	for _, r := range s.Routes {
		if r.Table == unix.RT_TABLE_MAIN && !r.GW.IsValid() && r.Dst == subnet {
			return true
		}
	}
	return false
}

// ip6Metric is what the kernel makes of metric 0 (IP6_RT_PRIO_USER).
const ip6Metric = 1024

// plain says whether a route is just as libnetwork makes it when it is told
// destination and gateway. The rest is put right after the interface moved.
func plain(r *state.Route) bool {
	metric := r.Metric == 0 || r.Dst.Addr().Is6() && r.Metric == ip6Metric
	return r.Table == unix.RT_TABLE_MAIN && metric && r.MTU == 0 && r.AdvMSS == 0 && !r.OnLink && !r.Src.IsValid()
}

// joined is what Join answers: gateways, and routes that lead to them. A network
// that is internal gets neither gateway nor default route.
func joined(s *state.Snapshot, internal, gwbridge bool) *cnm.JoinResponse {
	out := &cnm.JoinResponse{}
	var connected, hops []cnm.StaticRoute
	outward := false
	for i := range s.Routes {
		r := &s.Routes[i]
		isDefault := r.Dst.Bits() == 0
		switch {
		case r.Kernel || r.Table != unix.RT_TABLE_MAIN || isDefault && internal:
			continue
		case isDefault:
			outward = true
			if r.GW.IsValid() {
				connected = append(connected, gateway(out, s, r.GW)...)
				continue
			}
		case r.GW.IsValid():
			hops = append(hops, cnm.StaticRoute{Destination: r.Dst, RouteType: cnm.NextHop, NextHop: r.GW})
			continue
		}
		connected = append(connected, cnm.StaticRoute{Destination: r.Dst, RouteType: cnm.Connected})
	}
	out.StaticRoutes = unique(append(connected, hops...))
	out.DisableGatewayService = !outward && !gwbridge
	return out
}

// gateway sets a family's gateway, the first that comes, and returns the route
// to it where the addresses make none.
func gateway(out *cnm.JoinResponse, s *state.Snapshot, gw netip.Addr) []cnm.StaticRoute {
	field := &out.Gateway
	if gw.Is6() {
		field = &out.GatewayIPv6
	}
	if field.IsValid() {
		return nil
	}
	*field = gw
	for _, a := range s.Addrs {
		if a.Masked().Contains(gw) && onLink(s, a.Masked()) {
			return nil
		}
	}
	return []cnm.StaticRoute{{Destination: netip.PrefixFrom(gw, gw.BitLen()), RouteType: cnm.Connected}}
}

// unique keeps the first of routes to one destination, since the second fails.
func unique(in []cnm.StaticRoute) (out []cnm.StaticRoute) {
	seen := map[netip.Prefix]bool{}
	for _, r := range in {
		if !seen[r.Destination] {
			seen[r.Destination] = true
			out = append(out, r)
		}
	}
	return out
}
