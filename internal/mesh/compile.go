// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/order"
)

// Reach is the kernel's route to an underlay address.
type Reach struct {
	Link   string // "" means that there is no route now
	OnLink bool   // the route has no gateway
}

// Observed is what only the kernel knows.
type Observed struct {
	Reach   map[netip.Addr]Reach // routes to every peer's underlay addresses
	MTU     int                  // lowest MTU of the links with Self's underlay addresses, in bytes
	Uplinks []string             // names of these links
	NoIPv6  bool                 // the kernel was booted without IPv6
	Key     Key                  // this host's public key for WireGuard

	// Paths has the path MTU to underlay addresses, in bytes, if Probe has found it. 0 means that
	// the path carries as much as the uplink.
	Paths map[netip.Addr]int

	// Detours has those targets of State.Directs that, as Probe has found, only the tunnel reaches.
	Detours map[netip.Addr]bool

	// Own has the host's addresses in Self's blocks. These are the addresses of the host's
	// bridges.
	Own map[netip.Prefix]netip.Addr
}

// Compile computes the state. It changes nothing. If networks, peers or blocks are wrong, Compile leaves only these
// out and joins the reasons in the error. So one wrong entry does not cut off the other hosts. If the error wraps
// ErrSelf, there is no State.
func Compile(self Self, peers []Peer, facts Observed) (State, error) {
	c := &compiler{self: self.withDefaults(), facts: facts, macs: make(map[string]string), keys: make(map[Key]string), tested: make(map[netip.Addr]bool)}
	if err := c.self.validate(); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrSelf, err)
	}
	if err := c.apart(); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrSelf, err)
	}
	c.encrypt(peers)
	c.state = State{Name: c.self.Name, Protocol: c.self.Protocol, Subnets: slices.Clone(c.self.Subnets), Underlay: c.self.Underlay, Port: c.self.Port, VNI: c.self.VNI}
	for i, s := range c.state.Subnets {
		c.state.Subnets[i].Prefix = s.Prefix.Masked()
	}
	c.state.Exempt, c.state.AnyPort, c.state.Uplinks = c.self.exemptions(), c.self.anyPort(), c.facts.uplinks()
	for _, p := range inOrder(peers) {
		c.peer(p)
	}
	c.refuse()
	c.state.Senders = slices.DeleteFunc(c.state.Senders, func(x Sender) bool { return !x.Tunnels })
	c.sort()
	return c.state, errors.Join(c.errs...)
}

// uplinks returns the links to other hosts, each once: those with this host's underlay addresses, and those on the way
// to peers.
func (f Observed) uplinks() []string {
	list := slices.Clone(f.Uplinks)
	for _, r := range f.Reach {
		if r.Link != "" && !slices.Contains(list, r.Link) {
			list = append(list, r.Link)
		}
	}
	order.By(list, strings.Compare)
	return list
}

// exemptions pairs this host's blocks with the destinations of the same family.
func (s Self) exemptions() (list []Exemption) {
	for _, from := range s.Blocks {
		for _, to := range s.Exempt {
			if from.Addr().Is4() == to.Addr().Is4() {
				list = append(list, Exemption{from.Masked(), to.Masked()})
			}
		}
	}
	return list
}

// anyPort returns this host's blocks, if masqueraded packets from them get random ports.
func (s Self) anyPort() (list []netip.Prefix) {
	if s.AnyPort {
		for _, b := range s.Blocks {
			list = append(list, b.Masked())
		}
	}
	return list
}

// ErrSelf means that the description of this host itself is wrong.
var ErrSelf = errors.New("this host cannot take part in the mesh")

type compiler struct {
	self  Self
	facts Observed
	state State
	errs  []error

	excluded []netip.Prefix    // networks that were left out
	macs     map[string]string // Ethernet address -> id of its peer
	keys     map[Key]string    // WireGuard key -> id of its peer
	tested   map[netip.Addr]bool
	used     routed
}

// inOrder sorts the peers. So the result does not depend on the order of the list. If two peers
// claim one block, the same peer always gets it.
func inOrder(peers []Peer) []Peer {
	peers = slices.Clone(peers)
	order.Stable(peers, func(a, b Peer) int { return strings.Compare(a.ID, b.ID) })
	return peers
}

func (c *compiler) fail(p Peer, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("peer %s: %w", p.label(), fmt.Errorf(format, args...)))
}

func (c *compiler) peer(p Peer) {
	if err := c.check(p); err != nil {
		c.fail(p, "%w", err)
		return
	}
	for _, b := range p.Blocks {
		b = b.Masked()
		if slices.ContainsFunc(c.excluded, b.Overlaps) {
			continue // apart has reported it
		}
		if err := c.checkBlock(b); err != nil {
			c.fail(p, "%w", err)
			continue
		}
		r, err := c.route(p, b)
		if err != nil {
			c.fail(p, "%w", err)
			continue
		}
		if r.MTU > 0 && r.MTU < minMTU && b.Addr().Is6() {
			c.fail(p, "no route to %s: the path carries packets of %d bytes to it, and IPv6 needs %d", b, r.MTU, minMTU)
			continue
		}
		c.used.add(b, p.ID)
		c.sender(p, b)
		if !r.Src.IsValid() {
			r.Src = c.source(b)
		}
		c.state.Routes = append(c.state.Routes, r)
	}
}

// source returns this host's address in the network of a block.
func (c *compiler) source(block netip.Prefix) (src netip.Addr) {
	for _, n := range c.self.Subnets {
		if !n.Prefix.Overlaps(block) {
			continue
		}
		for _, own := range c.self.Blocks {
			if a, ok := c.facts.Own[own]; ok && n.Prefix.Contains(a) {
				return a
			}
		}
	}
	return src
}

// route decides how this host reaches one block.
func (c *compiler) route(p Peer, block netip.Prefix) (Route, error) {
	if p.Transport == WireGuard {
		return c.wire(p, block)
	}
	if c.self.encrypted(block) {
		return Route{}, fmt.Errorf("no route to %s: its network is encrypted, and transport %q is not", block, cmp.Or(p.Transport, Auto))
	}
	if p.Transport != VXLAN {
		if r, ok := c.direct(p, block); ok {
			return c.choose(p, block, r), nil
		}
		if p.Transport == Routes {
			return Route{}, fmt.Errorf("no route to %s: the kernel reaches none of its addresses %v without a gateway, "+
				"and transport %q wants all hosts on one link", block, p.Underlay, Routes)
		}
	}
	return c.tunnel(p, block)
}

// direct returns a route through the peer's underlay address. direct prefers an address of the
// block's family. An IPv4 block may have an IPv6 next hop, but an IPv6 block cannot have an
// IPv4 next hop.
func (c *compiler) direct(p Peer, block netip.Prefix) (r Route, ok bool) {
	for _, v4 := range []bool{true, false} {
		if v4 && block.Addr().Is6() {
			continue
		}
		for _, a := range p.Underlay {
			if at := c.facts.Reach[a]; a.Is4() == v4 && at.OnLink && at.Link != "" {
				return c.limit(Route{Dst: block, Via: a, Link: at.Link}, a, 0, c.facts.MTU), true
			}
		}
	}
	return r, false
}

// tunnel returns a route through the tunnel device of the address family that both hosts have.
// tunnel adds the device's entries for the peer.
func (c *compiler) tunnel(p Peer, block netip.Prefix) (Route, error) {
	local, remote, ok := c.ends(p)
	if !ok {
		return Route{}, fmt.Errorf("no tunnel: it has %v and this host %v, which have no family in common", p.Underlay, c.self.Underlay)
	}
	if err := c.fits(block, c.inside(VXLAN, local)); err != nil {
		return Route{}, err
	}
	d := c.device(local)
	hop := NextHop(p.vtep())
	if d.NoIPv6 {
		hop = block.Addr()
	}
	d.add(p, remote, cmp.Or(p.Port, c.self.Port), hop)
	return c.limit(Route{Dst: block, Via: hop, Link: d.Name, OnLink: true, Src: c.self.sourceOf(block)}, remote, Overhead(VXLAN, remote), d.MTU), nil
}

// limit sets the MTU of a route, if the path to an underlay address carries less than the route's
// link.
func (c *compiler) limit(r Route, to netip.Addr, overhead, link int) Route {
	if !slices.Contains(c.state.Ends, to) {
		c.state.Ends = append(c.state.Ends, to)
	}
	path, known := c.facts.Paths[to]
	r.KeepMTU = !known
	if path > 0 && path-overhead < link {
		r.MTU = path - overhead
	}
	return r
}

// ends returns the ends of the tunnel. If both hosts have IPv4, ends chooses it. So both hosts
// choose the same family.
func (c *compiler) ends(p Peer) (local, remote netip.Addr, ok bool) {
	for _, v4 := range []bool{true, false} {
		of := func(a netip.Addr) bool { return a.Is4() == v4 }
		i, j := slices.IndexFunc(c.self.Underlay, of), slices.IndexFunc(p.Underlay, of)
		if i >= 0 && j >= 0 {
			return c.self.Underlay[i], p.Underlay[j], true
		}
	}
	return local, remote, false
}

// inside returns the MTU of a tunnel, in bytes.
func (c *compiler) inside(t Transport, local netip.Addr) int {
	return cmp.Or(c.self.MTU, c.facts.MTU-Overhead(t, local))
}

// fits returns an error if packets of a block's family do not fit into a tunnel.
func (c *compiler) fits(block netip.Prefix, mtu int) error {
	switch {
	case mtu < leastMTU:
		return fmt.Errorf("no tunnel: an MTU of %d is below %d, the least of a link", mtu, leastMTU)
	case block.Addr().Is4():
		return nil
	case c.facts.NoIPv6:
		return fmt.Errorf("no route to %s: this kernel was booted without IPv6", block)
	case mtu < minMTU:
		return fmt.Errorf("no route to %s: packets in the tunnel have %d bytes at most, and IPv6 needs %d: raise the MTU of the uplink, which is %d, to %d; IPv4 works",
			block, mtu, minMTU, c.facts.MTU, c.facts.MTU+minMTU-mtu)
	}
	return nil
}

// device returns the tunnel device of a local address. At the first use it adds the device to
// the state.
func (c *compiler) device(local netip.Addr) *Device {
	i := slices.IndexFunc(c.state.Devices, func(d Device) bool { return d.Local == local })
	if i >= 0 {
		return &c.state.Devices[i]
	}
	d := Device{
		Name: c.self.Device, VNI: c.self.VNI, Port: c.self.Port, Local: local,
		MAC: c.self.VTEP, MTU: c.inside(VXLAN, local), Sources: c.self.Sources,
	}
	d.NoIPv6 = c.facts.NoIPv6 || d.MTU < minMTU
	if local.Is6() {
		d.Name += "6"
	}
	c.state.Devices = append(c.state.Devices, d)
	return &c.state.Devices[len(c.state.Devices)-1]
}

// minMTU is the smallest MTU for IPv6 (RFC 8200 section 5). With a lower MTU, a device has no IPv6, and so the next
// hops of its IPv4 routes are IPv4 addresses. leastMTU is the kernel's smallest MTU for IPv4.
const (
	minMTU   = 1280
	leastMTU = 68
)

func (d *Device) add(p Peer, remote netip.Addr, port uint16, hop netip.Addr) {
	i := slices.IndexFunc(d.Tunnels, func(t Tunnel) bool { return bytes.Equal(t.MAC, p.vtep()) })
	if i < 0 {
		d.Tunnels = append(d.Tunnels, Tunnel{MAC: p.vtep(), Remote: remote, Port: port})
		i = len(d.Tunnels) - 1
	}
	if t := &d.Tunnels[i]; !slices.Contains(t.Hops, hop) {
		t.Hops = append(t.Hops, hop)
	}
}

func (c *compiler) sort() {
	byPrefix := func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	}
	order.By(c.state.Routes, func(a, b Route) int { return cmp.Or(byPrefix(a.Dst, b.Dst), cmp.Compare(a.Metric, b.Metric)) })
	order.By(c.state.Subnets, func(a, b Subnet) int { return byPrefix(a.Prefix, b.Prefix) })
	order.By(c.state.Ends, netip.Addr.Compare)
	for _, x := range c.state.Senders {
		order.By(x.Inside, byPrefix)
	}
	order.By(c.state.Devices, func(a, b Device) int { return strings.Compare(a.Name, b.Name) })
	for i := range c.state.Devices {
		d := &c.state.Devices[i]
		d.Spare = !slices.ContainsFunc(c.state.Routes, func(r Route) bool { return r.Link == d.Name })
		order.By(d.Tunnels, func(a, b Tunnel) int { return bytes.Compare(a.MAC, b.MAC) })
		for _, t := range d.Tunnels {
			order.By(t.Hops, netip.Addr.Compare)
		}
	}
	if w := c.state.Wire; w != nil {
		order.By(w.Addrs, byPrefix)
		order.By(w.Peers, func(a, b nl.WirePeer) int { return bytes.Compare(a.Key[:], b.Key[:]) })
		for _, p := range w.Peers {
			order.By(p.Allowed, byPrefix)
		}
	}
}
