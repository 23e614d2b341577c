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
	p.shared.each(func(e Element) { t[e] = netip.AddrPort{} })
	return t
}

// Of returns the elements that decide about a frontend, with their endpoints, sorted as text. Elements of ranges, and addresses that may come back to
// themselves, are not among them.
func (t Table) Of(f Frontend) (list []Element) {
	for e, to := range t {
		e.Endpoint = to
		if e.ofOneFrontend() && e.Frontend == f || (e.Set == VIP || e.Set == ClusterIP) && e.Frontend.Addr == f.Addr {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b Element) int { return cmp.Compare(a.String(), b.String()) })
	return list
}

// Unused is an endpoint that gets no connection of this node.
type Unused struct {
	Endpoint netip.AddrPort
	Port     string // of the Service
	Why      string
}

// Unused returns the endpoints of a Service to which no cluster-wide traffic of this node goes, and why.
func (s *State) Unused(name Name) (list []Unused) {
	svc, have := s.of(name)
	if svc == nil {
		return nil
	}
	for _, sp := range svc.Ports {
		for _, ipv6 := range []bool{false, true} {
			all := endpointsOf(have, sp, ipv6)
			used := clusterList(all, &s.Node)
			for i := range all {
				if !slices.Contains(used, all[i].addr) {
					list = append(list, Unused{all[i].addr, sp.Name, all[i].unused()})
				}
			}
		}
	}
	return list
}

// unused says why an endpoint is not used.
func (e *candidate) unused() string {
	switch {
	case e.Ready:
		return "its hints are for other nodes or zones"
	case e.draining():
		return "it terminates, and others are ready"
	case e.Terminating:
		return "it terminates, and serves no more"
	}
	return "it is not ready"
}
