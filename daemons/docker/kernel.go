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

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// snapshot reads a link's state from the kernel after a plugin has made the link. The plugin's
// result lacks half of the state, and some of its routes have no gateway. What a router's advertisement
// has added meanwhile has a lifetime, and the kernel learns it again in the sandbox.
func snapshot(c *nl.Conn, link netlink.Link) (*state.Snapshot, error) {
	a := link.Attrs()
	s := &state.Snapshot{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU, Alias: a.Alias}
	addrs, err := c.Addrs(a.Index)
	if err != nil {
		return nil, err
	}
	for _, x := range addrs {
		if x.Prefix.Addr().Is4() || !x.Prefix.Addr().IsLinkLocalUnicast() && x.Flags&unix.IFA_F_PERMANENT != 0 {
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

// routes lists the routes of a link in all tables except the kernel's table "local".
func routes(c *nl.Conn, index int) (out []state.Route, err error) {
	all, err := c.LinkRoutes(index, unix.RT_TABLE_UNSPEC)
	if err != nil {
		return nil, err
	}
	for i := range all {
		r, ok := fromKernel(&all[i])
		if ok && r.Protocol != unix.RTPROT_RA && r.Table != unix.RT_TABLE_LOCAL && !r.Dst.Addr().IsLinkLocalUnicast() && !r.Dst.Addr().IsMulticast() {
			out = append(out, r)
		}
	}
	return out, nil
}

// fromKernel converts a route. It returns false for a route with several next hops, which no
// plugin makes.
func fromKernel(r *netlink.Route) (state.Route, bool) {
	dst := spec.DefaultDst(r.Family != unix.AF_INET6)
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

// toKernel converts a route back.
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

// exact gives a link in a sandbox the state that it had in the holding namespace. It adds the
// addresses, neighbours and routes that Join could not express. exact may be called again.
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

// wantedRoutes returns the routes to add, without those that the kernel makes for addresses. A
// default route is among them only if Docker has given this endpoint the default route.
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

// hasDefault reports whether Docker has given a link the default route of a family.
func hasDefault(s *state.Snapshot, v6 bool) bool {
	return slices.ContainsFunc(s.Routes, func(r state.Route) bool { return isMainDefault(&r, v6) && r.Metric != spareMetric })
}

func isMainDefault(r *state.Route, v6 bool) bool {
	return r.Dst.Bits() == 0 && r.Dst.Addr().Is6() == v6 && r.Table == unix.RT_TABLE_MAIN
}

// exactRoutes adds each route before it removes libnetwork's route to the same destination. So
// the container always has a route.
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
				continue // another route, or one that is already right
			}
			if err := c.RouteDel(toKernel(h, index)); err != nil && !nl.IsNotFound(err) {
				return fmt.Errorf("remove route to %s with metric %d: %w", h.Dst, h.Metric, err)
			}
		}
	}
	return nil
}

// contains compares routes without their protocol, because libnetwork sets its own protocol on
// the routes from the answer to Join.
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

// spareMetric is the metric of a default route that the driver restored. Docker does not know
// this route, and may add its own with the kernel's usual metric. With equal metrics, that would
// fail.
const spareMetric = 1 << 20

// gateways returns the default routes that a container uses.
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

// defaultOf returns the default route of a family, if there is one.
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

// restoreGateways restores the default routes that a container had before an endpoint joined.
// Docker may give up connecting the endpoint after it has moved the gateway there, and Docker
// 20.10 does not move it back. Then the interface goes, and the container would have no default
// route: it would reach nothing, and packets to its published ports would get no answer. The
// collector publishes the ports again for the endpoint that has the route.
func (d *Driver) restoreGateways(c *nl.Conn, e *state.Endpoint) {
	link, err := d.find(c, e)
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

// leads reports whether a link has the default route of a family.
func leads(c *nl.Conn, index int, v6 bool) (bool, error) {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	at, err := c.DefaultLink(family, true)
	return at == index, err
}
