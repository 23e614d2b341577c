// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/docker/state"
)

// addresses are the two addresses that fit into Docker's answer: the first of each
// family. If the subnet has no route of its own, as with ptp, the address is a single
// one: otherwise libnetwork would make the subnet on-link.
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

// joined is the answer to Join: gateways, and the routes of the main table whose gateway
// Docker can reach with the answer. The driver adds the rest, and what the answer cannot
// express, after the interface moved. An internal network gets neither gateway nor
// default route.
func joined(s *state.Snapshot, internal, gwbridge bool) *cnm.JoinResponse {
	out := &cnm.JoinResponse{}
	connected, outward := connectedRoutes(s, internal)
	for i := range s.Routes {
		r := &s.Routes[i]
		if r.Dst.Bits() == 0 && r.GW.IsValid() && r.Table == unix.RT_TABLE_MAIN && !internal {
			connected = append(connected, gateway(out, s, connected, r.GW)...)
			outward = true
		}
	}
	out.StaticRoutes = unique(append(connected, hops(s, connected)...))
	out.DisableGatewayService = !outward && !gwbridge
	return out
}

// connectedRoutes are those without a gateway; outward is true when one of them is the
// default route.
func connectedRoutes(s *state.Snapshot, internal bool) (out []cnm.StaticRoute, outward bool) {
	for _, r := range s.Routes {
		isDefault := r.Dst.Bits() == 0
		if r.Kernel || r.GW.IsValid() || r.Table != unix.RT_TABLE_MAIN || isDefault && internal {
			continue
		}
		outward = outward || isDefault
		out = append(out, cnm.StaticRoute{Destination: r.Dst, RouteType: cnm.Connected})
	}
	return out, outward
}

// hops are the routes with a reachable gateway, without the default routes.
func hops(s *state.Snapshot, connected []cnm.StaticRoute) (out []cnm.StaticRoute) {
	for _, r := range s.Routes {
		if r.GW.IsValid() && r.Dst.Bits() > 0 && r.Table == unix.RT_TABLE_MAIN && reached(s, connected, r.GW) {
			out = append(out, cnm.StaticRoute{Destination: r.Dst, RouteType: cnm.NextHop, NextHop: r.GW})
		}
	}
	return out
}

// reached says whether a gateway is on the link according to the answer to Join.
func reached(s *state.Snapshot, connected []cnm.StaticRoute, gw netip.Addr) bool {
	v4, v6 := addresses(s)
	if v4.IsValid() && v4.Masked().Contains(gw) || v6.IsValid() && v6.Masked().Contains(gw) {
		return true
	}
	for _, r := range connected {
		if r.Destination.Contains(gw) {
			return true
		}
	}
	return false
}

// gateway sets a family's first gateway, and returns a route to it if there is none yet.
func gateway(out *cnm.JoinResponse, s *state.Snapshot, connected []cnm.StaticRoute, gw netip.Addr) []cnm.StaticRoute {
	field := &out.Gateway
	if gw.Is6() {
		field = &out.GatewayIPv6
	}
	if field.IsValid() {
		return nil
	}
	*field = gw
	if reached(s, connected, gw) {
		return nil
	}
	return []cnm.StaticRoute{{Destination: netip.PrefixFrom(gw, gw.BitLen()), RouteType: cnm.Connected}}
}

// unique keeps the first of several routes to one destination, since the second fails.
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
