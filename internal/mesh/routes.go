// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// ErrForeignRoute means that a route of another program conflicts with one of ours. We never
// replace such a route.
var ErrForeignRoute = errors.New("a foreign route is in the way")

// routes makes our routes in the kernel equal to the state. routes first adds and changes
// routes, each in one step. Then it removes routes that are no longer wanted.
func (m *Mesh) routes(s State) error {
	m.expect(s)
	have, err := m.ourRoutes(s.Protocol)
	if err != nil {
		return err
	}
	there := make(map[routeKey]*existing, len(have))
	for i := range have {
		there[keyOf(&have[i])] = &existing{route: &have[i], stale: true}
	}
	var errs []error
	links := make(map[string]int)
	for _, r := range s.Routes {
		want, err := m.message(r, s.Protocol, links)
		if err == nil {
			have := there[keyOf(want)]
			if r.KeepMTU && have != nil && have.route.LinkIndex == want.LinkIndex {
				want.MTU = have.route.MTU
			}
			if err = m.ensure(want, have); err != nil && have != nil && s.encrypts(r) && have.route.LinkIndex != want.LinkIndex {
				have.stale = true // it does not encrypt
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r, err))
		}
	}
	keep, err := m.protects(s)
	errs = append(errs, err)
	for _, old := range there {
		if old.stale && !keep(old.route) {
			errs = append(errs, m.remove(old.route))
		}
	}
	return errors.Join(errs...)
}

// encrypts reports whether a route leads to an encrypted peer.
func (s State) encrypts(r Route) bool { return s.Wire != nil && r.Link == s.Wire.Name }

// protects returns a function that reports whether a route still refuses packets of containers. A route
// does so if the State has no network in its range any more, but the host has an address there. Containers
// of the removed network may still run, and must not send unencrypted packets to those of other hosts.
func (m *Mesh) protects(s State) (func(*netlink.Route) bool, error) {
	addrs, err := m.addrs()
	return func(r *netlink.Route) bool {
		p := nl.PrefixOf(r.Dst)
		return r.Type == unix.RTN_UNREACHABLE &&
			!slices.ContainsFunc(s.Subnets, func(n Subnet) bool { return n.Prefix.Overlaps(p) }) &&
			(err != nil || slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return p.Contains(nl.AddrOf(a.IP)) }))
	}, err
}

// routeKey identifies a route in the kernel, without its next hop.
type routeKey struct {
	dst    netip.Prefix
	metric int
}

func keyOf(r *netlink.Route) routeKey { return routeKey{nl.PrefixOf(r.Dst), r.Priority} }

// existing is a route of ours that the kernel has.
type existing struct {
	route *netlink.Route
	stale bool // no longer wanted
}

// ensure adds or replaces a route and marks the existing one as wanted. ensure marks the
// existing route even if it cannot change it. The existing route may still carry the part of
// the block that a foreign route does not cover.
func (m *Mesh) ensure(want *netlink.Route, have *existing) error {
	if have != nil {
		have.stale = false
	}
	var err error
	if want.Type == unix.RTN_UNICAST { // a refused range contains blocks, and links with their networks
		err = m.foreign(nl.PrefixOf(want.Dst), want.Protocol)
	}
	if err != nil || have != nil && same(*have.route, *want) {
		return err
	}
	if have != nil {
		return m.conn.RouteReplace(want)
	}
	err = m.conn.RouteAdd(want)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: %w", ErrForeignRoute, err)
	}
	return err
}

// foreign reads the kernel's route into a block. foreign returns an error if a route of
// another program covers the same block or a part of it. foreign also returns an error if the
// network of a local link contains the block, because packets for neighbours on that link
// would go to a peer. foreign stores the route's link for Watch.
func (m *Mesh) foreign(dst netip.Prefix, protocol netlink.RouteProtocol) error {
	a := dst.Addr()
	if !dst.IsSingleIP() {
		a = a.Next() // the first address of a block may be a broadcast address
	}
	got, err := m.conn.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(got) == 0 {
		return noRoute(a, err)
	}
	r := got[0]
	p := nl.PrefixOf(r.Dst)
	neighbours := r.Protocol == unix.RTPROT_KERNEL && hop(r) == netip.Addr{} && p.Bits() > 0
	if r.Protocol == protocol || !p.IsValid() || p.Addr().Is4() != a.Is4() || p.Bits() < dst.Bits() && !neighbours {
		return nil
	}
	m.blockedBy(r.LinkIndex)
	where := ""
	if link, err := m.conn.LinkAt(r.LinkIndex); err == nil {
		where = " dev " + link.Attrs().Name
	}
	return fmt.Errorf("%w: %s%s proto %s", ErrForeignRoute, p, where, r.Protocol)
}

// ipv6Metric is the kernel's default metric of an IPv6 route (IP6_RT_PRIO_USER).
const ipv6Metric = 1024

// message returns a route in the netlink library's type. links caches the indexes of links.
func (m *Mesh) message(r Route, protocol uint8, links map[string]int) (*netlink.Route, error) {
	if links[r.Link] == 0 && !r.Refused {
		link, err := m.conn.Link(r.Link)
		if err != nil {
			return nil, err
		}
		links[r.Link] = link.Attrs().Index
	}
	out := &netlink.Route{
		MTU:       r.MTU,
		LinkIndex: links[r.Link], Dst: nl.IPNet(r.Dst), Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST,
		Protocol: netlink.RouteProtocol(protocol),
	}
	out.Priority = r.Metric
	if r.Dst.Addr().Is6() && r.Metric == 0 {
		out.Priority = ipv6Metric
	}
	if r.Refused {
		out.Type = unix.RTN_UNREACHABLE
	} else if !r.Via.IsValid() && r.Dst.Addr().Is4() {
		out.Scope = netlink.SCOPE_LINK // as ip(8) does
	}
	if r.Src.IsValid() {
		out.Src = r.Src.AsSlice()
	}
	if r.OnLink {
		out.Flags = int(netlink.FLAG_ONLINK)
	}
	if r.Dst.Addr().Is4() && r.Via.Is6() {
		out.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: r.Via.AsSlice()}
	} else {
		out.Gw = r.Via.AsSlice()
	}
	return out, nil
}

func same(a, b netlink.Route) bool {
	return (a.LinkIndex == b.LinkIndex || a.Type == unix.RTN_UNREACHABLE) && hop(a) == hop(b) && nl.AddrOf(a.Src) == nl.AddrOf(b.Src) && a.Type == b.Type && a.MTU == b.MTU &&
		a.Flags&int(netlink.FLAG_ONLINK) == b.Flags&int(netlink.FLAG_ONLINK)
}

func hop(r netlink.Route) netip.Addr {
	if via, ok := r.Via.(*netlink.Via); ok {
		return nl.AddrOf(via.Addr)
	}
	return nl.AddrOf(r.Gw)
}

// ourRoutes returns the routes in the main table that have our protocol.
func (m *Mesh) ourRoutes(protocol uint8) ([]netlink.Route, error) {
	filter := &netlink.Route{Protocol: netlink.RouteProtocol(protocol), Table: unix.RT_TABLE_MAIN}
	const by = netlink.RT_FILTER_PROTOCOL | netlink.RT_FILTER_TABLE
	list, err := m.conn.RouteListFiltered(netlink.FAMILY_ALL, filter, by)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return list, nil
}

func (m *Mesh) remove(r *netlink.Route) error {
	if err := m.conn.RouteDel(r); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("remove route %s: %w", nl.PrefixOf(r.Dst), err)
	}
	return nil
}

// dropRoutes removes all routes that have our protocol.
func (m *Mesh) dropRoutes(protocol uint8) error {
	have, err := m.ourRoutes(protocol)
	errs := []error{err}
	for i := range have {
		errs = append(errs, m.remove(&have[i]))
	}
	return errors.Join(errs...)
}

// routed holds the blocks that have routes to peers. There may be thousands. The blocks of a
// network nearly always have the same prefix length.
type routed struct {
	peers map[netip.Prefix]string // id of the peer that has the block
	bits  map[int]bool            // prefix lengths in use
}

func (c *routed) add(block netip.Prefix, peer string) {
	if c.peers == nil {
		c.peers, c.bits = make(map[netip.Prefix]string), make(map[int]bool)
	}
	c.peers[block], c.bits[block.Bits()] = peer, true
}

// overlap returns an error if a block overlaps a claimed one.
func (c *routed) overlap(block netip.Prefix) error {
	p, found := c.around(block)
	if !found {
		p, found = c.inside(block)
	}
	if !found {
		return nil
	}
	return fmt.Errorf("block %v overlaps %v of peer %s", block, p, c.peers[p])
}

// around returns the block that is or contains p. It looks only at the prefix lengths in use.
func (c *routed) around(p netip.Prefix) (block netip.Prefix, found bool) {
	for bits := range c.bits {
		if bits > p.Bits() {
			continue
		}
		if block, err := p.Addr().Prefix(bits); err == nil {
			if _, found = c.peers[block]; found {
				return block, true
			}
		}
	}
	return block, false
}

// inside returns a block that is a part of p. It searches all blocks, but only if some have a
// longer prefix than p.
func (c *routed) inside(p netip.Prefix) (block netip.Prefix, found bool) {
	longer := false
	for bits := range c.bits {
		longer = longer || bits > p.Bits()
	}
	if !longer {
		return block, false
	}
	for block := range c.peers {
		if p.Overlaps(block) {
			return block, true
		}
	}
	return block, false
}
