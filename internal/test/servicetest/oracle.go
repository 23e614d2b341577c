// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is the first packet of a connection, as its sender sends it.
type Packet struct {
	From     netip.Addr     `json:"from"`
	To       netip.AddrPort `json:"to"`
	Protocol string         `json:"protocol"`
}

// String returns "10.0.0.1 -> 10.96.0.1:80/TCP".
func (p Packet) String() string { return fmt.Sprintf("%s -> %s/%s", p.From, p.To, p.Protocol) }

// Answer is what becomes of a packet.
type Answer struct {
	What    string // "pass", "reject", "drop", "endpoints"
	To      []To   // sorted; each is equally likely
	Seconds int    // of affinity
}

// To is an endpoint that a packet may go to.
type To struct {
	Endpoint   netip.AddrPort
	Masquerade bool
}

// String returns all of an answer.
func (a Answer) String() string { return fmt.Sprintf("%s %v, affinity %d s", a.What, a.To, a.Seconds) }

func (a Answer) equal(b Answer) bool {
	return a.What == b.What && a.Seconds == b.Seconds && slices.Equal(a.To, b.To)
}

// Decide answers for one packet. remembers reports whether the client of the packet remembers an endpoint for what it connects
// to; nil is nobody who remembers.
func (c Cluster) Decide(p Packet, remembers func(netip.AddrPort) bool) Answer {
	met := c.meets(p)
	switch {
	case met != nil:
		return met.answer(p, remembers)
	case c.hasClusterIP(p.To.Addr()):
		return Answer{What: "reject"}
	}
	if met := c.meetsNodePort(p); met != nil {
		return met.answer(p, remembers)
	}
	if c.inServiceCIDR(p.To.Addr()) && !c.isNode(p.To.Addr()) {
		return Answer{What: "drop"}
	}
	return Answer{What: "pass"}
}

// meeting is a packet's way in: a port of a Service, by one of its addresses.
type meeting struct {
	in      *Cluster
	service *Service
	port    ServicePort
	by      string // "clusterIP", "loadBalancer", "externalIP", "nodePort"
	v6      bool
}

// meets returns the Service that has the packet's destination, or nil.
func (c *Cluster) meets(p Packet) *meeting {
	for _, by := range []string{"clusterIP", "loadBalancer", "externalIP"} {
		for _, s := range c.ours() {
			if !slices.Contains(c.addressesOf(s, by, p.To.Addr().Is6()), p.To.Addr()) {
				continue
			}
			for _, port := range portsByName(s) {
				if port.Port == int(p.To.Port()) && protocolOf(port.Protocol) == p.Protocol {
					return &meeting{c, s, port, by, p.To.Addr().Is6()}
				}
			}
		}
	}
	return nil
}

func (c *Cluster) meetsNodePort(p Packet) *meeting {
	v6 := p.To.Addr().Is6()
	if !slices.Contains(c.nodePortAddresses(v6), p.To.Addr()) {
		return nil
	}
	for _, s := range c.ours() {
		if s.Spec.Type == "ClusterIP" || len(c.addressesOf(s, "clusterIP", v6)) == 0 {
			continue
		}
		for _, port := range portsByName(s) {
			if port.NodePort == int(p.To.Port()) && port.NodePort != 0 && protocolOf(port.Protocol) == p.Protocol {
				return &meeting{c, s, port, "nodePort", v6}
			}
		}
	}
	return nil
}

// ours returns the Services that this proxy handles, by name. A Service without a cluster IP is headless, and an ExternalName
// has no addresses even if some are left in it.
func (c *Cluster) ours() (list []*Service) {
	for i := range c.Services {
		s := &c.Services[i]
		name, labelled := s.Meta.Labels["service.kubernetes.io/service-proxy-name"]
		if labelled != (c.Flags.ProxyName != "") || name != c.Flags.ProxyName && labelled {
			continue
		}
		if s.Spec.Type != "ExternalName" {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *Service) int {
		if a.Meta.Namespace != b.Meta.Namespace {
			return strings.Compare(a.Meta.Namespace, b.Meta.Namespace)
		}
		return strings.Compare(a.Meta.Name, b.Meta.Name)
	})
	return list
}

func portsByName(s *Service) []ServicePort {
	list := slices.Clone(s.Spec.Ports)
	slices.SortFunc(list, func(a, b ServicePort) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func protocolOf(name string) string {
	if name == "" {
		return "TCP"
	}
	return name
}

// addressesOf returns the addresses of a Service in one family. Without a cluster IP in the family it has none.
func (c *Cluster) addressesOf(s *Service, by string, v6 bool) []netip.Addr {
	texts := s.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{s.Spec.ClusterIP}
	}
	cluster := readAll(texts, v6)
	switch {
	case len(cluster) == 0:
		return nil
	case by == "clusterIP":
		return cluster
	case by == "externalIP" && !c.Flags.IgnoreExternalIPs:
		return readAll(s.Spec.ExternalIPs, v6)
	case by == "loadBalancer" && s.Spec.Type == "LoadBalancer":
		var vips []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IPMode != "Proxy" {
				vips = append(vips, in.IP)
			}
		}
		return readAll(vips, v6)
	}
	return nil
}

func (c *Cluster) hasClusterIP(a netip.Addr) bool {
	for _, s := range c.ours() {
		if len(s.Spec.Ports) > 0 && slices.Contains(c.addressesOf(s, "clusterIP", a.Is6()), a) {
			return true
		}
	}
	return false
}

// answer decides about a packet that meets a Service.
func (m *meeting) answer(p Packet, remembers func(netip.AddrPort) bool) Answer {
	if m.by == "loadBalancer" && !m.mayCome(p.From) {
		return Answer{What: "drop"}
	}
	list := m.usable(p.From)
	if len(list) == 0 {
		if m.policyLocal(p.From) && len(m.clusterList()) > 0 {
			return Answer{What: "drop"}
		}
		return Answer{What: "reject"}
	}
	a := Answer{What: "endpoints"}
	if m.service.Spec.SessionAffinity == "ClientIP" {
		a.Seconds = 10800
		if config := m.service.Spec.SessionAffinityConfig; config != nil {
			a.Seconds = config.ClientIP.TimeoutSeconds
		}
		for _, e := range list {
			if remembers != nil && remembers(e) {
				list = []netip.AddrPort{e}
				break
			}
		}
	}
	for _, e := range list {
		a.To = append(a.To, To{e, m.masquerades(p, e)})
	}
	return a
}

// usable returns the endpoints to which a client may be sent now.
func (m *meeting) usable(from netip.Addr) []netip.AddrPort {
	if m.policyLocal(from) {
		return m.localList()
	}
	return m.clusterList()
}

// policyLocal reports whether a client finds only endpoints of this node. externalTrafficPolicy is not for pods of this node
// and the node itself.
func (m *meeting) policyLocal(from netip.Addr) bool {
	if m.by == "clusterIP" {
		return m.service.Spec.InternalTrafficPolicy == "Local"
	}
	return m.service.Spec.ExternalTrafficPolicy == "Local" && !m.in.isPod(from) && !m.in.isNode(from)
}

func (m *meeting) masquerades(p Packet, endpoint netip.AddrPort) bool {
	from := p.From
	if from == endpoint.Addr() && m.isHere(endpoint) {
		return true // it comes back to itself
	}
	if m.in.hasClusterIP(p.To.Addr()) { // even if it is met as an external IP
		if m.in.Flags.MasqueradeAll || m.in.knowsPods(from.Is6()) && !m.in.isPod(from) {
			return true
		}
	}
	if m.by == "clusterIP" {
		return false
	}
	if m.service.Spec.ExternalTrafficPolicy != "Local" {
		return true
	}
	return m.in.isNode(from) && !m.in.isPod(from)
}

// isHere reports whether an endpoint is on this node.
func (m *meeting) isHere(endpoint netip.AddrPort) bool {
	for _, e := range m.endpoints() {
		if e.at == endpoint && m.in.isLocalEndpoint(e) {
			return true
		}
	}
	return m.in.isPod(endpoint.Addr()) || m.in.isNode(endpoint.Addr())
}

// mayCome asks loadBalancerSourceRanges.
func (m *meeting) mayCome(from netip.Addr) bool {
	if len(m.service.Spec.LoadBalancerSourceRanges) == 0 {
		return true
	}
	ranges := readRanges(m.service.Spec.LoadBalancerSourceRanges)
	mine := slices.DeleteFunc(slices.Clone(ranges), func(r netip.Prefix) bool { return r.Addr().Is6() != m.v6 })
	if len(mine) == 0 {
		return len(ranges) > 0 // all are of the other family
	}
	for _, r := range mine {
		if r.Bits() == 0 || r.Contains(from) {
			return true
		}
	}
	for _, r := range mine {
		if r.Contains(m.in.primary(m.v6)) {
			return slices.Contains(m.in.addressesOf(m.service, "loadBalancer", m.v6), from)
		}
	}
	return false
}
