// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"net/netip"
	"slices"
)

// KindClusterIP is the kind of a frontend at a cluster IP.
const KindClusterIP = "cluster IP"

// Holder says whose a frontend is.
type Holder struct {
	Service Name
	Port    string // its name; "" if it has none
	Kind    string // "cluster IP", "load balancer's address", "external IP" or "node port"
}

// String returns "shop/web http, cluster IP".
func (o Holder) String() string {
	text := o.Service.String()
	if o.Port != "" {
		text += " " + o.Port
	}
	return text + ", " + o.Kind
}

// Holder returns whose a frontend is in the program. ok is false if it is nobody's.
func (p *Program) Holder(f Frontend) (o Holder, ok bool) {
	e := p.winner(f)
	if e.port == nil {
		return o, false
	}
	return Holder{e.service, e.name, [...]string{KindClusterIP, "load balancer's address", "external IP", "node port"}[e.kind]}, true
}

// Frontends returns the frontends that a Service wants: cluster IPs, load balancers' addresses, external IPs, node ports. Another Service may
// have some of them (Holder).
func (p *Program) Frontends(name Name) (list []Frontend) {
	var fronts []front
	for _, port := range p.ports[name] {
		fronts = append(fronts, port.fronts...)
	}
	slices.SortStableFunc(fronts, func(a, b front) int { return cmp.Or(cmp.Compare(a.kind, b.kind), a.Compare(b.Frontend)) })
	for _, f := range fronts {
		list = append(list, f.Frontend)
	}
	return slices.Compact(list)
}

// Table returns the elements that the program wants.
func (p *Program) Table() Table {
	t := make(Table)
	for f := range p.wanted {
		f.elements(p.winner(f), func(e Element) { t[e.key()] = e.Endpoint })
	}
	for e := range p.shared {
		t[e.key()] = netip.AddrPort{}
	}
	return t
}
