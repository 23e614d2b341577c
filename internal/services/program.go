// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Program is what one node does for Services.
type Program struct {
	place
	ports  map[Name][]*port
	wanted map[Frontend][]entry // the first one has the frontend
	shared shares
	health map[Name][]HealthCheck
}

// place is what a program knows of its node.
type place struct {
	local     []netip.Addr // the node's own addresses
	main      []netip.Addr // one of each family, if there is one
	nodePorts []netip.Addr
	pods      []netip.Prefix
	keeping   []netip.Prefix // who sends to cluster IPs with its own address
	cidrs     []netip.Prefix
}

// entry is a frontend with the port that wants it. The zero entry is none.
type entry struct {
	kind kind
	*port
}

func placeOf(s *State) place {
	p := place{local: append(slices.Clone(s.Node.Addresses), s.Addresses...), pods: widest(s.Node.Pods), cidrs: widest(s.CIDRs)}
	for _, ipv6 := range []bool{false, true} {
		if a := p.firstOf(s.Node.Addresses, ipv6); a.IsValid() {
			p.main = append(p.main, a)
		}
		switch hasPods := slices.ContainsFunc(p.pods, func(r netip.Prefix) bool { return r.Addr().Is6() == ipv6 }); {
		case s.Options.MasqueradeAll:
		case hasPods:
			p.keeping = append(p.keeping, ofFamily(p.pods, ipv6)...)
		default: // nobody is known to be no pod
			p.keeping = append(p.keeping, netip.PrefixFrom(anyAddress(ipv6), 0))
		}
		p.nodePorts = append(p.nodePorts, p.withNodePorts(s, ipv6)...)
	}
	return p
}

// withNodePorts returns the addresses of a family that have node ports. If no range is of this family, all have.
func (p *place) withNodePorts(s *State, ipv6 bool) (list []netip.Addr) {
	if len(s.Options.NodePorts) == 0 {
		if a := p.primary(ipv6); a.IsValid() {
			list = append(list, a)
		}
		return list
	}
	ranges := ofFamily(s.Options.NodePorts, ipv6)
	for _, a := range s.Addresses {
		if a.Is6() == ipv6 && !a.IsLoopback() && (len(ranges) == 0 || contain(ranges, a)) && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// widest leaves out ranges that are within others, because a set of ranges of the kernel has no two that overlap.
func widest(ranges []netip.Prefix) (list []netip.Prefix) {
	for i, r := range ranges {
		within := func(o netip.Prefix) bool { return o.Overlaps(r) && o.Bits() < r.Bits() }
		if !slices.ContainsFunc(ranges, within) && !slices.Contains(ranges[:i], r) {
			list = append(list, r)
		}
	}
	return list
}

func ofFamily(ranges []netip.Prefix, ipv6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ranges), func(r netip.Prefix) bool { return r.Addr().Is6() != ipv6 })
}

func contain(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

func (p *place) firstOf(list []netip.Addr, ipv6 bool) netip.Addr {
	if i := slices.IndexFunc(list, family(ipv6)); i >= 0 {
		return list[i]
	}
	return netip.Addr{}
}

func (p *place) primary(ipv6 bool) netip.Addr { return p.firstOf(p.main, ipv6) }
func (p *place) isPod(a netip.Addr) bool      { return contain(p.pods, a) }
func (p *place) isLocal(a netip.Addr) bool    { return slices.Contains(p.local, a) || a.IsLoopback() }

// Compile returns the program of a node. Endpoints that old sends to keep their slots, so that Diff finds little; old may
// be nil.
func Compile(s *State, old *Program) *Program {
	p := &Program{
		place: placeOf(s), ports: make(map[Name][]*port, len(s.Services)), wanted: make(map[Frontend][]entry), shared: newShares(),
		health: make(map[Name][]HealthCheck),
	}
	for name := range s.names() {
		var before []*port
		if old != nil {
			before = old.ports[name]
		}
		p.put(name, p.compile(s, name, before))
	}
	one := func(e Element) { p.shared.add(e, 1) }
	for f := range p.wanted {
		f.shares(p.winner(f), one)
	}
	p.shares(one)
	return p
}

// compiled is what a program has of a Service.
type compiled struct {
	ports  []*port
	health []HealthCheck
}

// compile compiles a Service. Endpoints that were in old stay in their slots.
func (p *Program) compile(s *State, name Name, old []*port) (c compiled) {
	svc, list := s.of(name)
	if svc != nil && handled(svc, s.Options.ProxyName) {
		c.ports, c.health = p.portsOf(s, svc, list, old), healthOf(svc, list, &s.Node)
	}
	return c
}

// put adds a Service that the program does not have.
func (p *Program) put(name Name, c compiled) {
	if len(c.ports) == 0 {
		return
	}
	p.ports[name] = c.ports
	for _, port := range c.ports {
		for _, f := range port.fronts {
			p.wanted[f.Frontend] = append(p.wanted[f.Frontend], entry{f.kind, port})
			slices.SortFunc(p.wanted[f.Frontend], entry.compare)
		}
	}
	if len(c.health) > 0 {
		p.health[name] = c.health
	}
}

// drop removes a Service.
func (p *Program) drop(name Name) {
	for _, port := range p.ports[name] {
		for _, c := range port.fronts {
			left := slices.DeleteFunc(p.wanted[c.Frontend], func(e entry) bool { return e.service == name })
			if p.wanted[c.Frontend] = left; len(left) == 0 {
				delete(p.wanted, c.Frontend)
			}
		}
	}
	delete(p.ports, name)
	delete(p.health, name)
}

// compare orders those who want one frontend. The order does not depend on who came first, because a program has no past.
func (e entry) compare(other entry) int {
	return cmp.Or(cmp.Compare(e.kind, other.kind), cmp.Compare(e.service.Namespace, other.service.Namespace),
		cmp.Compare(e.service.Name, other.service.Name), cmp.Compare(e.name, other.name))
}

// winner returns who has a frontend.
func (p *Program) winner(f Frontend) entry {
	if list := p.wanted[f]; len(list) > 0 {
		return list[0]
	}
	return entry{}
}

// Update compiles some Services anew, among them all that are not as they were when the program was compiled or updated
// last. It changes the program, and returns how. If anything but Services and slices changed, use Compile and Diff.
func (p *Program) Update(s *State, names ...Name) Change {
	c := newChanges()
	before := make(map[Frontend]entry)
	note := func(list []*port) {
		for _, port := range list {
			for _, front := range port.fronts {
				if _, ok := before[front.Frontend]; !ok {
					before[front.Frontend] = p.winner(front.Frontend)
				}
			}
		}
	}
	for _, name := range names {
		is := p.compile(s, name, p.ports[name])
		note(p.ports[name])
		note(is.ports)
		p.drop(name)
		p.put(name, is)
	}
	for _, f := range slices.SortedFunc(maps.Keys(before), Frontend.Compare) {
		c.frontend(f, before[f], p.winner(f))
	}
	for _, e := range slices.SortedFunc(maps.Keys(c.shares), Element.compareShared) {
		had, has := p.shared.add(e, c.shares[e])
		c.share(e, had, has)
	}
	return c.done()
}
