// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"net/netip"
	"slices"
)

// candidate is an endpoint of one port of a Service.
type candidate struct {
	*SliceEndpoint
	addr  netip.AddrPort
	slice string
}

// draining reports whether an endpoint is used if none is ready.
func (e *candidate) draining() bool { return e.Serving && e.Terminating }

// endpointsOf returns the endpoints of a port that the slices of its Service have, sorted, each address and port once.
func endpointsOf(list []*Slice, p ServicePort, ipv6 bool) (all []candidate) {
	for _, s := range list {
		if s.Headless || s.IPv6 != ipv6 {
			continue
		}
		for _, sp := range s.Ports {
			if sp.Name != p.Name || sp.Protocol != p.Protocol {
				continue
			}
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				all = append(all, candidate{e, netip.AddrPortFrom(e.Address, sp.Number), s.Name})
			}
		}
	}
	return once(all)
}

// once sorts endpoints and leaves of each address and port the one that counts. If a pod got the address of another that
// is still being deleted, it is the one that does not terminate. If an endpoint is in two slices because it moves, no slice
// is known to be the newer one, so the better conditions count, and then the name of the slice.
func once(all []candidate) []candidate {
	slices.SortStableFunc(all, func(a, b candidate) int {
		if a.addr != b.addr {
			return a.addr.Compare(b.addr)
		}
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.slice, b.slice))
	})
	return slices.CompactFunc(all, func(a, b candidate) bool { return a.addr == b.addr })
}

func (e *candidate) rank() (n int) {
	if e.Terminating {
		n += 4
	}
	if !e.Ready {
		n += 2
	}
	if !e.Serving {
		n++
	}
	return n
}

// clusterList returns the endpoints for traffic that no policy keeps on this node: the ready ones that the hints allow, and
// if no endpoint is ready those that drain, wherever they are.
func clusterList(all []candidate, n *Node) []netip.AddrPort {
	return orDraining(all, hinted(all, n))
}

// localList returns the endpoints for traffic that must stay on this node. Hints do not count.
func localList(all []candidate, n *Node) []netip.AddrPort {
	here := slices.DeleteFunc(slices.Clone(all), func(e candidate) bool { return !n.has(&e) })
	return orDraining(here, func(*candidate) bool { return true })
}

func orDraining(all []candidate, allowed func(*candidate) bool) []netip.AddrPort {
	ready := addresses(all, func(e *candidate) bool { return e.Ready && allowed(e) })
	if len(ready) > 0 {
		return ready
	}
	return addresses(all, (*candidate).draining)
}

func addresses(all []candidate, want func(*candidate) bool) (list []netip.AddrPort) {
	for i := range all {
		if want(&all[i]) {
			list = append(list, all[i].addr)
		}
	}
	return list
}

// has reports whether an endpoint is on this node.
func (n *Node) has(e *candidate) bool { return e.Node != "" && e.Node == n.Name }

func (e *SliceEndpoint) hints() Hints {
	if e.Hints == nil {
		return Hints{}
	}
	return *e.Hints
}

// hinted returns which ready endpoints this node may use. Hints count if every ready endpoint has some and one of them is for
// this node; those for nodes come before those for zones. Otherwise some endpoints would get no traffic of any node.
func hinted(all []candidate, n *Node) func(*candidate) bool {
	forNode := func(e *candidate) bool { return slices.Contains(e.hints().ForNodes, n.Name) }
	forZone := func(e *candidate) bool { return slices.Contains(e.hints().ForZones, n.Zone) }
	switch {
	case complete(all, forNode, func(e *candidate) bool { return len(e.hints().ForNodes) > 0 }):
		return forNode
	case n.Zone != "" && complete(all, forZone, func(e *candidate) bool { return len(e.hints().ForZones) > 0 }):
		return forZone
	}
	return func(*candidate) bool { return true }
}

// complete reports whether all ready endpoints have hints, and one of them is for us.
func complete(all []candidate, ours, has func(*candidate) bool) (one bool) {
	for i := range all {
		e := &all[i]
		if e.Ready && !has(e) {
			return false
		}
		one = one || e.Ready && ours(e)
	}
	return one
}
