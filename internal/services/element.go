// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"strconv"
)

// Element is an element of a set or of a map in the kernel. An element of a set has no Endpoint. Two elements of one map
// that differ only in Endpoint have the same key.
type Element struct {
	Set      Set
	IPv6     bool
	NodePort bool   // of the set of node ports: the key has no address
	Size     uint32 // the class, the length of a prefix, or the seconds: sets of one kind differ by it

	Frontend Frontend     // or only an address
	Slot     uint16       // of a class
	Range    netip.Prefix // of Allowed the source, masked
	Endpoint netip.AddrPort
}

// Set is the kind of a set or a map.
type Set uint8

// These are the sets. "Outside" is what externalTrafficPolicy Local shows to those who are neither this node nor its pods.
const (
	Pods         Set = iota // of this node; a range
	Keeping                 // who sends to cluster IPs with its own address; a range
	Hairpin                 // an address that may come back to itself
	Many                    // frontend and slot to endpoint, for each class of numbers of endpoints
	OutsideMany             // as Many
	Allowed                 // frontend and source, for each length of prefixes
	Ranged                  // a frontend whose sources must be in Allowed
	Sticky                  // a frontend with affinity, for each timeout
	Masquerade              // a frontend that hides every source
	OutsideOne              // as One
	OutsideClass            // as Class
	Outside                 // a frontend that shows OutsideOne and OutsideClass
	Drop                    // a frontend whose policy Local finds no endpoint here
	Reject                  // a frontend without endpoints
	One                     // frontend to its only endpoint
	Class                   // a frontend whose endpoints are in Many, for each class
	ClusterIP               // an address that refuses what no frontend takes
	VIP                     // an address that has frontends
	NodeAddress             // an address that has node ports
	CIDR                    // of a ServiceCIDR; what meets no VIP is dropped; a range
)

// name returns the kind's part of a set's name.
func (s Set) name() string {
	return [...]string{"pods", "keeping", "hairpin", "many", "outsidemany", "allowed", "ranged", "sticky", "masq", "outsideone", "outsideclass", "outside",
		"drop", "reject", "one", "class", "clusterips", "vips", "nodeaddrs", "cidrs"}[s]
}

// key returns the element without its data.
func (e Element) key() Element {
	e.Endpoint = netip.AddrPort{}
	return e
}

// Name returns the set's name in the table: "many4_8", "npone6".
func (e Element) Name() string {
	name, fam, size := e.Set.name(), "4", ""
	if e.NodePort {
		name = "np" + name
	}
	if e.IPv6 {
		fam = "6"
	}
	if e.Size > 0 || e.Set == Allowed {
		size = "_" + strconv.Itoa(int(e.Size))
	}
	return name + fam + size
}

// String returns the element with the name of its set, as nft writes it: "many4_8 10.96.0.1 . tcp . 80 . 3 : 10.1.0.5 . 8080".
func (e Element) String() string {
	text := e.Name() + " "
	switch e.Set {
	case Pods, Keeping, CIDR:
		return text + e.Range.String()
	case Hairpin, ClusterIP, VIP, NodeAddress:
		return text + e.Frontend.Addr.String()
	case Many, OutsideMany:
		text += e.Frontend.String() + " . " + itoa(e.Slot)
	case Allowed:
		text += e.Frontend.String() + " . " + e.Range.Addr().String()
	default:
		text += e.Frontend.String()
	}
	if e.Endpoint.IsValid() {
		text += " : " + e.Endpoint.Addr().String() + " . " + itoa(e.Endpoint.Port())
	}
	return text
}

func itoa(n uint16) string { return strconv.Itoa(int(n)) }

// in returns an element of a frontend in a set.
func (f Frontend) in(set Set, size uint32) Element {
	return Element{Set: set, IPv6: f.Addr.Is6(), NodePort: f.Addr.IsUnspecified(), Size: size, Frontend: f}
}

// elements calls add for each element that only one frontend has.
func (f Frontend) elements(e entry, add func(Element)) {
	if e.port == nil {
		return
	}
	inside, outside := e.views()
	f.spread(inside, One, Class, Many, add)
	switch {
	case len(inside.endpoints) > 0:
	case inside.otherwise == Dropped:
		add(f.in(Drop, 0))
	default:
		add(f.in(Reject, 0))
	}
	if e.split() && len(inside.endpoints) > 0 {
		add(f.in(Outside, 0))
		f.spread(outside, OutsideOne, OutsideClass, OutsideMany, add)
	}
	if e.affinity > 0 {
		add(f.in(Sticky, e.affinity))
	}
	if e.hides() {
		add(f.in(Masquerade, 0))
	}
	if e.kind == balancer && e.restricted {
		add(f.in(Ranged, 0))
		for _, r := range e.sources {
			allowed := f.in(Allowed, uint32(r.Bits()))
			allowed.Range = r
			add(allowed)
		}
	}
}

// spread adds the endpoints of a view: one, or a class with its slots.
func (f Frontend) spread(v view, one, class, many Set, add func(Element)) {
	if len(v.endpoints) == 1 {
		e := f.in(one, 0)
		e.Endpoint = v.endpoints[0]
		add(e)
		return
	}
	size := classOf(len(v.endpoints))
	for i, to := range v.endpoints {
		e := f.in(many, size)
		e.Slot, e.Endpoint = uint16(i), to
		add(e)
	}
	if size > 0 {
		add(f.in(class, size))
	}
}

// shares calls add for each element that other frontends may need, too.
func (f Frontend) shares(e entry, add func(Element)) {
	if e.port == nil {
		return
	}
	if e.kind != nodePort {
		add(address(VIP, f.Addr))
	}
	if e.kind == clusterIP {
		add(address(ClusterIP, f.Addr))
	}
	for _, a := range e.here {
		add(address(Hairpin, a))
	}
}

// shares calls add for each element that no Service makes.
func (p *place) shares(add func(Element)) {
	for _, a := range p.nodePorts {
		add(address(NodeAddress, a))
	}
	for set, ranges := range map[Set][]netip.Prefix{Pods: p.pods, Keeping: p.keeping, CIDR: p.cidrs} {
		for _, r := range ranges {
			add(Element{Set: set, IPv6: r.Addr().Is6(), Range: r})
		}
	}
}

func address(set Set, a netip.Addr) Element {
	return Element{Set: set, IPv6: a.Is6(), Frontend: Frontend{Addr: a}}
}
