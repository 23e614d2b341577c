// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// snapshot reads a link's state from the kernel after a plugin made it. A plugin's result
// lacks half of it, and some of its routes have no gateway.
func snapshot(c *nl.Conn, link netlink.Link) (*state.Snapshot, error) {
	a := link.Attrs()
	s := &state.Snapshot{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU, Alias: a.Alias}
	addrs, err := c.Addrs(a.Index)
	if err != nil {
		return nil, err
	}
	for _, x := range addrs {
		if !x.Prefix.Addr().IsLinkLocalUnicast() || x.Prefix.Addr().Is4() {
			s.Addrs = append(s.Addrs, x.Prefix)
		}
	}
	if s.Routes, err = routes(c, a.Index); err != nil {
		return nil, err
	}
	s.Neighbours, err = neighbours(c, a.Index)
	return s, err
}

// routes lists those of a link in all tables but the kernel's own.
func routes(c *nl.Conn, index int) (out []state.Route, err error) {
	all, err := c.LinkRoutes(index, unix.RT_TABLE_UNSPEC)
	if err != nil {
		return nil, err
	}
	for i := range all {
		r, ok := fromKernel(&all[i])
		if ok && r.Table != unix.RT_TABLE_LOCAL && !r.Dst.Addr().IsLinkLocalUnicast() && !r.Dst.Addr().IsMulticast() {
			out = append(out, r)
		}
	}
	return out, nil
}

// fromKernel returns false for a route with several next hops: no plugin makes one.
func fromKernel(r *netlink.Route) (state.Route, bool) {
	out := state.Route{
		Dst: prefixOf(r.Dst, r.Family), Table: r.Table, Metric: r.Priority, MTU: r.MTU, AdvMSS: r.AdvMSS,
		Scope: uint8(r.Scope), Protocol: int(r.Protocol), OnLink: r.Flags&int(netlink.FLAG_ONLINK) != 0,
		Kernel: r.Protocol == unix.RTPROT_KERNEL,
	}
	out.GW, out.Src = nl.AddrOf(r.Gw), nl.AddrOf(r.Src)
	return out, len(r.MultiPath) == 0
}

// toKernel is fromKernel's reverse.
func toKernel(r *state.Route, index int) *netlink.Route {
	out := &netlink.Route{
		LinkIndex: index, Dst: nl.IPNet(r.Dst), Table: r.Table, Priority: r.Metric, MTU: r.MTU, AdvMSS: r.AdvMSS,
		Scope: netlink.Scope(r.Scope), Protocol: netlink.RouteProtocol(r.Protocol),
	}
	if r.GW.IsValid() {
		out.Gw = r.GW.AsSlice()
	}
	if r.Src.IsValid() {
		out.Src = r.Src.AsSlice()
	}
	if r.OnLink {
		out.Flags = int(netlink.FLAG_ONLINK)
	}
	return out
}

func neighbours(c *nl.Conn, index int) (out []state.Neighbour, err error) {
	all, err := c.NeighList(index, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range all {
		if addr := nl.AddrOf(n.IP); n.State == unix.NUD_PERMANENT && addr.IsValid() && len(n.HardwareAddr) > 0 {
			out = append(out, state.Neighbour{Addr: addr, MAC: n.HardwareAddr.String()})
		}
	}
	return out, nil
}

func prefixOf(n *net.IPNet, family int) netip.Prefix {
	if n == nil {
		return defaultRoute(family == unix.AF_INET6)
	}
	return nl.PrefixOf(n)
}

func defaultRoute(v6 bool) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}
