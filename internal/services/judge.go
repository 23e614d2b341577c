// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"
)

// Ruling is what the elements of a table do with a packet. The name of the Service is not in a table.
type Ruling struct {
	Verdict
	Cause    Cause
	Frontend Frontend // that the packet meets; its port is 0 if it meets none
	Outside  bool     // the client sees what externalTrafficPolicy Local shows to others than the node and its pods
}

// Cause says which elements decide.
type Cause uint8

// These are the causes.
const (
	NoService    Cause = iota // the address is nobody's, or other ports of it are
	ByEndpoints               // there are endpoints
	ByMemory                  // affinity: the client was sent to one of them before
	SourceRanges              // the client is in none of loadBalancerSourceRanges
	SourceDecide              // the client's address is not known, and ranges decide
	NoEndpoints               // there is none on any node
	NoneHere                  // a policy Local, and there is none on this node
	OtherPort                 // the address is a cluster IP, which has no such port
	Unassigned                // the address is in a ServiceCIDR, and no Service has it
	Torn                      // slots are missing, so a packet may find an endpoint or none
)

// Shown is what a frontend shows to its clients.
type Shown struct {
	Frontend        Frontend
	Inside, Outside Side           // to the node and its pods, and to others
	Affinity        uint32         // seconds; 0: none
	ClusterIP       bool           // its address is a cluster IP
	Hides           bool           // every client gets a source address of the node
	Ranged          bool           // only Sources may come in
	Sources         []netip.Prefix // sorted
}

// Side is what clients of one side find behind a frontend: endpoints, or an answer.
type Side struct {
	Endpoints []netip.AddrPort // in their slots, each equally likely
	Answer    Action           // without endpoints
	Cause     Cause
}

// Split reports whether the frontend does not show everybody the same.
func (s *Shown) Split() bool {
	return s.Inside.Cause != s.Outside.Cause || s.Inside.Answer != s.Outside.Answer || !slices.Equal(s.Inside.Endpoints, s.Outside.Endpoints)
}

// Show returns what a frontend shows. ok is false if the table has nothing that decides about it.
func (t Table) Show(f Frontend) (s Shown, ok bool) {
	s = Shown{Frontend: f, Inside: t.side(f, One, Class, Many), ClusterIP: t.has(address(ClusterIP, f.Addr)), Hides: t.has(f.in(Masquerade, 0))}
	switch {
	case s.Inside.Cause != NoService:
	case t.has(f.in(Drop, 0)):
		s.Inside = Side{Answer: Dropped, Cause: NoneHere}
	case t.has(f.in(Reject, 0)):
		s.Inside = Side{Answer: Rejected, Cause: NoEndpoints}
	}
	if s.Outside = s.Inside; t.has(f.in(Outside, 0)) {
		if s.Outside = t.side(f, OutsideOne, OutsideClass, OutsideMany); s.Outside.Cause == NoService {
			s.Outside = Side{Answer: Dropped, Cause: NoneHere}
		}
	}
	s.Ranged = t.has(f.in(Ranged, 0))
	for e := range t {
		if e.Frontend == f && e.Set == Sticky {
			s.Affinity = e.Size
		}
		if e.Frontend == f && e.Set == Allowed {
			s.Sources = append(s.Sources, e.Range)
		}
	}
	slices.SortFunc(s.Sources, netip.Prefix.Compare)
	return s, s.Inside.Cause != NoService || s.Outside.Cause != NoService || s.Ranged
}

// side returns the endpoints that rules can draw. The last rule of a class draws among its first slots, and one more than half
// of them exist.
func (t Table) side(f Frontend, one, class, many Set) Side {
	list := t.slotsOf(f, one, class, many)
	for size := uint32(2); size <= largestClass; size *= 2 {
		if t.has(f.in(class, size)) && len(list) <= int(size/2) {
			return Side{Cause: Torn}
		}
	}
	if len(list) == 0 {
		return Side{}
	}
	return Side{Endpoints: list, Answer: Translated, Cause: ByEndpoints}
}

// Judge decides about a packet as the rules do with the elements of the table, in the order of the rules. local knows the
// addresses of the node, for which the kernel needs no set. A source that is not valid is some address outside of the cluster.
func (t Table) Judge(k Packet, local func(netip.Addr) bool) Ruling {
	to := k.To.Addr()
	f := Frontend{to, k.Protocol, k.To.Port()}
	if t.has(address(VIP, to)) {
		if r, taken := t.meet(f, k, local); taken {
			return r
		}
		if t.has(address(ClusterIP, to)) {
			return Ruling{Verdict: Verdict{Action: Rejected}, Cause: OtherPort}
		}
	}
	if t.has(address(NodeAddress, to)) {
		f.Addr = anyAddress(to.Is6())
		if r, taken := t.meet(f, k, local); taken {
			return r
		}
	}
	if t.within(CIDR, to) && !local(to) {
		return Ruling{Verdict: Verdict{Action: Dropped}, Cause: Unassigned}
	}
	return Ruling{}
}

// meet decides about a packet to a frontend. taken is false if no element decides.
func (t Table) meet(f Frontend, k Packet, local func(netip.Addr) bool) (r Ruling, taken bool) {
	s, ok := t.Show(f)
	r = Ruling{Frontend: f}
	switch {
	case !ok:
		return Ruling{}, false
	case s.Ranged && !k.From.IsValid():
		r.Cause = SourceDecide
		return r, true
	case s.Ranged && !contain(s.Sources, k.From):
		r.Action, r.Cause = Dropped, SourceRanges
		return r, true
	}
	side := s.Inside
	if t.has(f.in(Outside, 0)) && !t.within(Pods, k.From) && !local(k.From) {
		side, r.Outside = s.Outside, true
	}
	to := side.Endpoints
	if r.Action, r.Cause = side.Answer, side.Cause; s.Affinity > 0 && k.Remembered.IsValid() {
		r.Action, r.Cause, to = Translated, ByMemory, []netip.AddrPort{k.Remembered}
	}
	if r.Action == Translated {
		r.Affinity = s.Affinity
	}
	for _, endpoint := range to {
		r.To = append(r.To, Destination{endpoint, t.Hides(f, k, endpoint.Addr(), local) != ""})
	}
	return r, r.Cause != NoService
}

// Hides says why the packet gets a source address of the node, or "" if it keeps its own.
func (t Table) Hides(f Frontend, k Packet, to netip.Addr, local func(netip.Addr) bool) string {
	switch {
	case k.From == to && t.has(address(Hairpin, to)):
		return "it comes back to its sender"
	case t.has(f.in(Masquerade, 0)):
		return "the answer must come back through this node"
	case t.has(f.in(Outside, 0)) && local(k.From) && !t.within(Pods, k.From):
		return "this node has sent it"
	case t.has(address(ClusterIP, k.To.Addr())) && !t.within(Keeping, k.From):
		return "its sender is no pod of this node"
	}
	return ""
}

func (t Table) has(e Element) bool { _, ok := t[e]; return ok }

// within reports whether a range of a set has an address. One that is not valid is only in a range of all.
func (t Table) within(set Set, a netip.Addr) bool {
	if !a.IsValid() {
		return t.has(Element{Set: set, Range: netip.PrefixFrom(anyAddress(false), 0)}) || t.has(Element{Set: set, IPv6: true, Range: netip.PrefixFrom(anyAddress(true), 0)})
	}
	for bits := range a.BitLen() + 1 {
		if r, err := a.Prefix(bits); err == nil && t.has(Element{Set: set, IPv6: a.Is6(), Range: r}) {
			return true
		}
	}
	return false
}

// OfFrontends reports whether the elements of a kind are frontends, without slots and sources.
func (s Set) OfFrontends() bool {
	return !slices.Contains([]Set{Pods, Keeping, Hairpin, Many, OutsideMany, Allowed, ClusterIP, VIP, NodeAddress, CIDR}, s)
}

// Keys returns the keys in a set that decide about packets to the frontend. like has what the name of the set says. Slots, sources and
// who may come back to itself depend on other elements.
func (f Frontend) Keys(like Element) []Element {
	switch {
	case !like.Set.OfFrontends():
		if like.Set == ClusterIP || like.Set == VIP || like.Set == NodeAddress {
			return []Element{address(like.Set, f.Addr)}
		}
	case like.NodePort == f.Addr.IsUnspecified():
		return []Element{f.in(like.Set, like.Size)}
	}
	return nil
}

// Slots returns the keys of the slots of a frontend that is in the set of a class.
func (e Element) Slots() (list []Element) {
	many, ok := map[Set]Set{Class: Many, OutsideClass: OutsideMany}[e.Set]
	if !ok {
		return nil
	}
	for slot := range e.Size {
		s := e.Frontend.in(many, e.Size)
		s.Slot = uint16(slot)
		list = append(list, s)
	}
	return list
}

// HairpinOf returns the key of an endpoint that may come back to itself. What is no endpoint has none.
func HairpinOf(to netip.AddrPort) []Element {
	if !to.IsValid() {
		return nil
	}
	return []Element{address(Hairpin, to.Addr())}
}

// KeepsAll reports whether everybody sends to cluster IPs of a family with its own address, because nobody is known to be no pod.
func (t Table) KeepsAll(ipv6 bool) bool {
	return t.has(Element{Set: Keeping, IPv6: ipv6, Range: netip.PrefixFrom(anyAddress(ipv6), 0)})
}
