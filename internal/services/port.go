// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// port is one port of a Service in one family, with what this node does for it.
type port struct {
	service Name
	name    string
	fronts  []front
	cluster destinations
	*special

	protocol                     l4.Protocol
	internalLocal, externalLocal bool
	restricted                   bool
	affinity                     uint32
}

// special is what few ports have. It does not change, because ports without it share one.
type special struct {
	local   destinations   // only if a policy keeps some traffic on this node
	serving destinations   // sorted; only of UDP
	here    []netip.Addr   // of the endpoints, those on this node
	sources []netip.Prefix // that may reach the load balancer's addresses, if restricted
}

var nothingSpecial special

// kept returns what a port keeps.
func (s *special) kept() *special {
	if s.local == "" && s.serving == "" && len(s.here)+len(s.sources) == 0 {
		return &nothingSpecial
	}
	return s
}

// front is a frontend that a port wants.
type front struct {
	Frontend
	kind kind
}

// kind is the kind of a frontend. If two Services want the same one, the kind that comes first gets it: whoever may write an
// external IP into a Service must not get the traffic of another Service's address (CVE-2020-8554).
type kind uint8

const (
	clusterIP kind = iota
	balancer
	externalIP
	nodePort
)

// Frontend is what a client connects to. A node port has the unspecified address of its family, since it is
// at several addresses.
type Frontend struct {
	Addr     netip.Addr
	Protocol l4.Protocol
	Port     uint16
}

// String returns "10.96.0.1 . tcp . 80", or "tcp . 30080" for a node port.
func (f Frontend) String() string {
	text := f.Protocol.String() + " . " + itoa(f.Port)
	if f.Addr.IsUnspecified() {
		return text
	}
	return f.Addr.String() + " . " + text
}

func anyAddress(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// portsOf returns the ports of a Service in each family in which it has a cluster IP.
func (p *Program) portsOf(s *State, svc *Service, have []*Slice, old []*port) (list []*port) {
	for _, ipv6 := range []bool{false, true} {
		if !slices.ContainsFunc(svc.ClusterIPs, family(ipv6)) {
			continue
		}
		for i := range svc.Ports {
			list = append(list, p.portOf(s, svc, endpointsOf(have, svc.Ports[i], ipv6), &svc.Ports[i], ipv6, old))
		}
	}
	return list
}

// handled reports whether a Service is ours, and of a type that this version knows.
func handled(svc *Service, proxyName string) bool {
	if svc.ProxyName == nil && proxyName != "" || svc.ProxyName != nil && (proxyName == "" || *svc.ProxyName != proxyName) {
		return false
	}
	return svc.Type == typeClusterIP || svc.Type == typeNodePort || svc.Type == TypeLoadBalancer
}

func family(ipv6 bool) func(netip.Addr) bool {
	return func(a netip.Addr) bool { return a.Is6() == ipv6 }
}

// portOf returns one port in one family. all are its endpoints.
func (p *Program) portOf(s *State, svc *Service, all []candidate, sp *ServicePort, ipv6 bool, old []*port) *port {
	cluster := clusterList(all, &s.Node)
	out := &port{
		service: svc.Name, name: sp.Name, protocol: sp.Protocol, fronts: frontsOf(svc, sp, ipv6, &s.Options),
		cluster: destinationsOf(cluster), internalLocal: svc.InternalLocal, externalLocal: svc.ExternalLocal, affinity: svc.Affinity,
		special: new(special),
	}
	var local []netip.AddrPort
	if svc.InternalLocal || svc.ExternalLocal {
		local = localList(all, &s.Node)
		out.local = destinationsOf(local)
	}
	if sp.Protocol == l4.UDP {
		out.serving = destinationsOf(addresses(all, func(e *candidate) bool { return e.Serving }))
	}
	out.here = p.hereOf(all, append(local, cluster...), &s.Node)
	out.restrict(svc, ipv6, p)
	if i := slices.IndexFunc(old, out.follows(ipv6)); i >= 0 {
		out.cluster, out.local = out.cluster.keep(old[i].cluster.list()), out.local.keep(old[i].local.list())
	}
	out.special = out.kept()
	return out
}

// follows reports whether a port was the same port before.
func (p *port) follows(ipv6 bool) func(*port) bool {
	return func(old *port) bool {
		return old.name == p.name && old.protocol == p.protocol && len(old.fronts) > 0 && old.fronts[0].Addr.Is6() == ipv6
	}
}

// frontsOf returns the frontends of a port. Without a node port its number is 0.
func frontsOf(svc *Service, sp *ServicePort, ipv6 bool, o *Options) (list []front) {
	add := func(k kind, addrs []netip.Addr, number uint16) {
		for _, a := range addrs {
			if a.Is6() == ipv6 {
				list = append(list, front{Frontend{a, sp.Protocol, number}, k})
			}
		}
	}
	add(clusterIP, svc.ClusterIPs, sp.Number)
	if svc.Type == TypeLoadBalancer {
		add(balancer, svc.Balancers, sp.Number)
	}
	if !o.IgnoreExternalIPs {
		add(externalIP, svc.ExternalIPs, sp.Number)
	}
	if svc.Type != typeClusterIP && sp.NodePort != 0 {
		add(nodePort, []netip.Addr{anyAddress(ipv6)}, sp.NodePort)
	}
	return list
}

// restrict keeps the source ranges of the family. None of this family, or one that has all addresses, restricts nothing. Ranges
// that cannot be read let nobody in. If the node itself may come in, its packets may have the load balancer's address as
// source, because that can be an address of the node.
func (p *port) restrict(svc *Service, ipv6 bool, of *Program) {
	if svc.Type != TypeLoadBalancer || !svc.Restricted {
		return
	}
	var list []netip.Prefix
	for _, r := range svc.Sources {
		if r.Addr().Is6() == ipv6 {
			list = append(list, r)
		}
	}
	if len(list) == 0 && len(svc.Sources) > 0 || slices.ContainsFunc(list, func(r netip.Prefix) bool { return r.Bits() == 0 }) {
		return
	}
	if slices.ContainsFunc(list, func(r netip.Prefix) bool { return r.Contains(of.primary(ipv6)) }) {
		for _, a := range svc.Balancers {
			if a.Is6() == ipv6 {
				list = append(list, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	p.restricted, p.sources = true, slices.Compact(list)
}

// hereOf returns the addresses of used endpoints that are on this node. An endpoint that somebody wrote by hand names no node.
func (p *Program) hereOf(all []candidate, used []netip.AddrPort, n *Node) (list []netip.Addr) {
	for i := range all {
		e := &all[i]
		here := n.has(e) || p.isPod(e.Address) || p.isLocal(e.Address)
		if here && slices.Contains(used, e.addr) && !slices.Contains(list, e.Address) {
			list = append(list, e.Address)
		}
	}
	return list
}
