// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

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
	all, err := c.NeighList(a.Index, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range all {
		if addr := nl.AddrOf(n.IP); n.State == unix.NUD_PERMANENT && addr.IsValid() && len(n.HardwareAddr) > 0 {
			s.Neighbours = append(s.Neighbours, state.Neighbour{Addr: addr, MAC: n.HardwareAddr.String()})
		}
	}
	return s, nil
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
	dst := defaultRoute(r.Family == unix.AF_INET6)
	if r.Dst != nil {
		dst = nl.PrefixOf(r.Dst)
	}
	out := state.Route{
		Dst: dst, GW: nl.AddrOf(r.Gw), Src: nl.AddrOf(r.Src), Table: r.Table, Metric: r.Priority, MTU: r.MTU, AdvMSS: r.AdvMSS,
		Scope: uint8(r.Scope), Protocol: int(r.Protocol), OnLink: r.Flags&int(netlink.FLAG_ONLINK) != 0,
		Kernel: r.Protocol == unix.RTPROT_KERNEL,
	}
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

func defaultRoute(v6 bool) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// exact makes the link in a sandbox as it was in the holding namespace: it adds further
// addresses, neighbours, and the routes that Join cannot express. It may be repeated.
func exact(c *nl.Conn, index int, want *state.Snapshot, internal bool) error {
	link, err := c.LinkAt(index)
	if err != nil {
		return err
	}
	have, err := snapshot(c, link)
	if err != nil {
		return err
	}
	for _, a := range want.Addrs {
		if slices.ContainsFunc(have.Addrs, func(x netip.Prefix) bool { return x.Addr() == a.Addr() }) {
			continue
		}
		if err := addAddr(c, link, a); err != nil {
			return err
		}
	}
	for _, n := range want.Neighbours {
		if err := addNeighbour(c, index, n); err != nil {
			return err
		}
	}
	return exactRoutes(c, index, have.Routes, wantedRoutes(want, have, internal))
}

// wantedRoutes are the routes that no address makes. A default route is only wanted if
// Docker has chosen this endpoint for it.
func wantedRoutes(want, have *state.Snapshot, internal bool) (out []state.Route) {
	for _, r := range want.Routes {
		v6 := r.Dst.Addr().Is6()
		if r.Kernel || isMainDefault(&r, v6) && (internal || !hasDefault(have, v6)) {
			continue
		}
		out = append(out, r)
	}
	return out
}

// hasDefault says whether Docker has given a link a family's default route.
func hasDefault(s *state.Snapshot, v6 bool) bool {
	return slices.ContainsFunc(s.Routes, func(r state.Route) bool { return isMainDefault(&r, v6) && r.Metric != spareMetric })
}

func isMainDefault(r *state.Route, v6 bool) bool {
	return r.Dst.Bits() == 0 && r.Dst.Addr().Is6() == v6 && r.Table == unix.RT_TABLE_MAIN
}

// exactRoutes adds its route before it removes libnetwork's, so that there is always a
// route.
func exactRoutes(c *nl.Conn, index int, have, want []state.Route) error {
	for i := range want {
		w := &want[i]
		if contains(have, w) {
			continue
		}
		if err := c.RouteReplace(toKernel(w, index)); err != nil {
			return fmt.Errorf("add route to %s in table %d: %w", w.Dst, w.Table, err)
		}
		for j := range have {
			h := &have[j]
			if h.Dst != w.Dst || h.Table != w.Table || h.Metric == w.Metric || contains(want, h) {
				continue // another route, or already replaced
			}
			if err := c.RouteDel(toKernel(h, index)); err != nil && !nl.IsNotFound(err) {
				return fmt.Errorf("remove route to %s with metric %d: %w", h.Dst, h.Metric, err)
			}
		}
	}
	return nil
}

// contains compares routes without their protocol: libnetwork makes its own routes from the
// answer to Join.
func contains(list []state.Route, r *state.Route) bool {
	return slices.ContainsFunc(list, func(x state.Route) bool {
		x.Protocol = r.Protocol
		return x == *r
	})
}

func addNeighbour(c *nl.Conn, index int, n state.Neighbour) error {
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return err
	}
	err = c.NeighSet(&netlink.Neigh{LinkIndex: index, State: unix.NUD_PERMANENT, IP: n.Addr.AsSlice(), HardwareAddr: mac})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add neighbour %s: %w", n.Addr, err)
	}
	return nil
}

// spareMetric is the metric of a restored default route. Docker does not know of that
// route, and adds its own with the kernel's metric, which would fail if the metrics were
// equal.
const spareMetric = 1 << 20

// gateways are the default routes that a container uses.
func (d *Driver) gateways(sandbox string) (out []state.Gateway, err error) {
	c, err := d.inside(sandbox)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		g, err := defaultOf(c, family)
		if err != nil {
			return nil, fmt.Errorf("look for the default route in %s: %w", sandbox, err)
		}
		out = append(out, g...)
	}
	return out, nil
}

// defaultOf is the default route of a family, if there is one.
func defaultOf(c *nl.Conn, family int) ([]state.Gateway, error) {
	index, err := c.DefaultLink(family, true)
	if err != nil || index == 0 {
		return nil, err
	}
	link, err := c.LinkAt(index)
	if err != nil {
		return nil, err
	}
	all, err := routes(c, index)
	i := slices.IndexFunc(all, func(r state.Route) bool { return isMainDefault(&r, family == unix.AF_INET6) })
	if err != nil || i < 0 {
		return nil, err
	}
	return []state.Gateway{{Link: link.Attrs().Name, Route: all[i]}}, nil
}

// restoreGateways restores the default routes that a container had when an endpoint joined.
// The endpoint's interface, which has them now, is about to be removed: Docker has given up
// connecting the endpoint after the gateway moved, and 20.10 does not move it back. The
// container would reach nothing, and could not be reached at its ports, which the collector
// publishes again for the endpoint that has the route.
func (d *Driver) restoreGateways(c *nl.Conn, e *state.Endpoint) {
	link, err := find(c, e)
	if err != nil {
		return // there is no interface to remove
	}
	for i := range e.Gateways {
		g := &e.Gateways[i]
		if is, err := leads(c, link.Attrs().Index, g.Route.Dst.Addr().Is6()); err != nil || !is || g.Link == link.Attrs().Name {
			continue
		}
		if err := putSpare(c, g); err != nil {
			d.opts.Log("endpoint %.12s: its container has no default route: %v", e.ID, err)
			continue
		}
		d.opts.Log("endpoint %.12s: restored its container's default route via %s", e.ID, g.Link)
	}
}

func putSpare(c *nl.Conn, g *state.Gateway) error {
	link, err := c.Link(g.Link)
	if err != nil {
		return fmt.Errorf("restore the default route via %s: %w", g.Link, err)
	}
	r := g.Route
	r.Metric = spareMetric
	if err := c.RouteAdd(toKernel(&r, link.Attrs().Index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("restore the default route via %s: %w", g.Link, err)
	}
	return nil
}

// leads says whether the kernel's default route of a family uses a link.
func leads(c *nl.Conn, index int, v6 bool) (bool, error) {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	at, err := c.DefaultLink(family, true)
	return at == index, err
}
