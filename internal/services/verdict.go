// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// Packet is the first packet of a connection, as it comes from its sender.
type Packet struct {
	From       netip.Addr
	To         netip.AddrPort
	Protocol   l4.Protocol
	Remembered netip.AddrPort // where affinity sent this client of this frontend before, if it did
}

// Verdict is what becomes of a packet.
type Verdict struct {
	Action   Action
	Service  string        // whose frontend it meets: "shop/web http", or "" if there is none
	To       []Destination // if Translated; each is equally likely
	Affinity uint32        // seconds for which the client stays with its endpoint; 0: it does not
}

// Destination is where a translated packet goes.
type Destination struct {
	Endpoint   netip.AddrPort
	Masquerade bool // it gets a source address of the node
}

// Action is what is done with a packet.
type Action uint8

// These are the actions. Passed is not a Service's.
const (
	Passed Action = iota
	Translated
	Rejected
	Dropped
)

// String returns "passed", "translated", "rejected" or "dropped".
func (a Action) String() string { return [...]string{"passed", "translated", "rejected", "dropped"}[a] }

// view is what clients of one side find behind a frontend: endpoints, or an answer.
type view struct {
	endpoints []netip.AddrPort
	otherwise Action
}

// views returns what this node and its pods find, and what others find. If the policy Local finds no endpoint here
// but there are some elsewhere, the answer is silence: an external load balancer then tries another node.
func (e entry) views() (inside, outside view) {
	all := view{e.cluster.list(), Rejected}
	here := view{e.local.list(), Rejected}
	if len(e.cluster) > 0 {
		here.otherwise = Dropped
	}
	switch {
	case e.kind == clusterIP && e.internalLocal:
		return here, here
	case e.split():
		return all, here
	}
	return all, all
}

// split reports whether others do not find what this node and its pods find.
func (e entry) split() bool { return e.kind != clusterIP && e.externalLocal }

// hides reports whether a frontend masquerades every client: the endpoint may be on another node, whose answer must come
// back here.
func (e entry) hides() bool { return e.kind != clusterIP && !e.externalLocal }

// Verdict decides about a packet. It is the definition of what a Program means.
func (p *Program) Verdict(k Packet) Verdict {
	f := Frontend{k.To.Addr(), k.Protocol, k.To.Port()}
	if e := p.winner(f); e.port != nil {
		return p.meets(e, k)
	}
	f.Addr = anyAddress(f.Addr.Is6())
	switch to := k.To.Addr(); {
	case p.shared.count(address(ClusterIP, to)) > 0:
		return Verdict{Action: Rejected}
	case slices.Contains(p.nodePorts, to) && p.winner(f).port != nil:
		return p.meets(p.winner(f), k)
	case contain(p.cidrs, to) && !p.isLocal(to):
		return Verdict{Action: Dropped}
	}
	return Verdict{}
}

// meets decides about a packet to a frontend.
func (p *Program) meets(e entry, k Packet) Verdict {
	v := Verdict{Service: e.service.String() + " " + e.name}
	if e.kind == balancer && e.restricted && !contain(e.sources, k.From) {
		v.Action = Dropped
		return v
	}
	side := p.viewOf(e, k.From)
	if len(side.endpoints) == 0 {
		v.Action = side.otherwise
		return v
	}
	to := side.endpoints
	if e.affinity > 0 && slices.Contains(to, k.Remembered) {
		to = []netip.AddrPort{k.Remembered}
	}
	v.Action, v.Affinity = Translated, e.affinity
	for _, endpoint := range to {
		v.To = append(v.To, Destination{endpoint, p.masquerades(e, k, endpoint.Addr())})
	}
	return v
}

// viewOf returns what a client finds.
func (p *Program) viewOf(e entry, client netip.Addr) view {
	inside, outside := e.views()
	if p.isPod(client) || p.isLocal(client) {
		return inside
	}
	return outside
}

// masquerades reports whether the packet of a client gets a source address of the node. Otherwise the endpoint's answer would
// not come back through this node, or not leave the endpoint at all.
func (p *Program) masquerades(e entry, k Packet, to netip.Addr) bool {
	switch {
	case k.From == to && p.shared.count(address(Hairpin, to)) > 0, e.hides():
		return true
	case p.shared.count(address(ClusterIP, k.To.Addr())) > 0 && !contain(p.keeping, k.From): // also to another frontend of the address
		return true
	}
	return e.split() && p.isLocal(k.From) && !p.isPod(k.From)
}
