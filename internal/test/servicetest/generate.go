// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// generator draws a cluster and its changes.
type generator struct {
	*rand.Rand
	Cluster
	next int // of names that are new
}

// What is drawn is small, so that things meet.
var (
	zones     = []string{"east", "west"}
	protocols = []string{"TCP", "UDP", "SCTP", ""}
	portNames = []string{"", "http", "dns"}
	numbers   = []int{80, 81, 8080}
	nodePorts = []int{30000, 30001, 30002, 30003, 30004}
	balancers = []string{"192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "192.0.2.3"}
	externals = []string{"192.0.2.1", "192.0.2.9", "172.16.0.1", "10.96.0.2", "2001:db8::9", "fd00:96::2", "not an address", "10.96.0.50"}
	ranges    = []string{"203.0.113.0/24", " 172.16.0.1/16 ", "10.244.1.0/24", "2001:db8:7::/48", "0.0.0.0/0", "::/0", "fd00:244:1::/64", "198.51.100.7/32", "fd00:16::/64"}
	clients   = []string{
		"10.244.1.1", "10.244.1.2", "10.244.2.1", "172.16.0.1", "172.16.0.9", "172.16.0.2", "203.0.113.7", "198.51.100.7", "192.0.2.1", "10.244.1.254",
		"fd00:244:1::1", "fd00:244:1::2", "fd00:244:2::1", "fd00:16::1", "fd00:16::2", "2001:db8:7::7", "2001:db8:8::8", "2001:db8::1",
	}
)

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

// fill draws the first state.
func (g *generator) fill() {
	g.Node = Node{Meta: Meta{Name: "n1", Labels: map[string]string{"topology.kubernetes.io/zone": "east"}}}
	g.Node.Status.Addresses = []NodeAddress{{"Hostname", "n1"}, {"ExternalIP", "203.0.113.200"}, {"InternalIP", "172.16.0.1"}, {"InternalIP", "fd00:16::1"}}
	g.Node.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:244:1::/64"}
	g.Links = []string{"127.0.0.1", "::1", "172.16.0.1", "172.16.0.9", "10.244.1.254", "fd00:16::1"}
	g.ServiceCIDRs = []string{"10.96.0.0/16", "fd00:96::/112"}
	for range 2 + g.IntN(4) {
		g.addService()
	}
	g.flags()
	if g.chance(20) {
		g.podCIDRs()
	}
}

func (g *generator) flags() {
	g.Flags = Flags{MasqueradeAll: g.chance(15), IgnoreExternalIPs: g.chance(15)}
	if g.chance(15) {
		g.Flags.ProxyName = "other"
	}
	if g.chance(40) {
		g.Flags.NodePortAddresses = pick(g, []string{"0.0.0.0/0"}, []string{"172.16.0.0/16"}, []string{"172.16.0.9/32", "fd00:99::/64"}, []string{"::/0"})
	}
}

func (g *generator) podCIDRs() {
	g.Node.Spec.PodCIDRs = pick(g, nil, []string{"10.244.1.0/24"}, []string{"fd00:244:1::/64"}, []string{"10.244.1.0/24", "fd00:244:1::/64"})
}

func (g *generator) addService() {
	g.next++
	s := Service{Meta: Meta{Namespace: pick(g, "a", "b"), Name: fmt.Sprint("s", g.next)}}
	if g.chance(10) {
		s.Meta.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": pick(g, "other", "third", "")}
	}
	g.draw(&s)
	g.Services = append(g.Services, s)
	for range g.IntN(4) {
		g.addSliceOf(s)
	}
}

// draw draws the spec of a Service, with addresses of its own number.
func (g *generator) draw(s *Service) {
	n := g.next % 40
	s.Spec = ServiceSpec{Type: pick(g, "ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer", "ExternalName")}
	v4, v6 := fmt.Sprint("10.96.0.", n), fmt.Sprintf("fd00:96::%x", n)
	if g.chance(10) {
		v4 = fmt.Sprintf("010.096.000.%03d", n)
	}
	s.Spec.ClusterIPs = pick(g, []string{v4}, []string{v4, v6}, []string{v6, v4}, []string{v6}, []string{v4, v6})
	if g.chance(5) {
		s.Spec.ClusterIPs = []string{"None"}
	}
	if s.Spec.ClusterIP = s.Spec.ClusterIPs[0]; g.chance(10) {
		s.Spec.ClusterIPs = nil
	}
	g.drawPorts(s)
	g.drawPolicies(s)
	g.drawOutside(s)
}

func (g *generator) drawPorts(s *Service) {
	s.Spec.Ports = nil
	for range 1 + g.IntN(3) {
		p := ServicePort{Name: pick(g, portNames...), Protocol: pick(g, protocols...), Port: pick(g, numbers...)}
		if s.Spec.Type != "ClusterIP" && g.chance(80) || g.chance(5) {
			p.NodePort = pick(g, nodePorts...)
		}
		if !slices.ContainsFunc(s.Spec.Ports, func(o ServicePort) bool {
			same := protocolOf(o.Protocol) == protocolOf(p.Protocol)
			return o.Name == p.Name || same && (o.Port == p.Port || p.NodePort != 0 && o.NodePort == p.NodePort)
		}) {
			s.Spec.Ports = append(s.Spec.Ports, p)
		}
	}
}

func (g *generator) drawPolicies(s *Service) {
	s.Spec.InternalTrafficPolicy = pick(g, "", "Cluster", "Cluster", "Local")
	s.Spec.ExternalTrafficPolicy = pick(g, "", "Cluster", "Local", "Local")
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = pick(g, "", "None", "ClientIP"), nil
	if g.chance(60) {
		s.Spec.SessionAffinityConfig = new(Affinity)
		s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds = 1 + g.IntN(5)
	}
	if s.Spec.HealthCheckNodePort = 0; s.Spec.Type == "LoadBalancer" && g.chance(80) {
		s.Spec.HealthCheckNodePort = 31000 + g.next
	}
}

func (g *generator) drawOutside(s *Service) {
	s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges, s.Status.LoadBalancer.Ingress = nil, nil, nil
	for g.chance(30) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, pick(g, externals...))
	}
	for s.Spec.Type == "LoadBalancer" && g.chance(60) {
		in := Ingress{IP: pick(g, balancers...), IPMode: pick(g, "", "VIP", "VIP", "Proxy")}
		if g.chance(10) {
			in = Ingress{Hostname: "lb.example"}
		}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, in)
	}
	for g.chance(30) {
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, pick(g, ranges...))
	}
	if g.chance(2) {
		s.Spec.LoadBalancerSourceRanges = []string{"nonsense"}
	}
}

// addSlice gives some Service a slice.
func (g *generator) addSlice() {
	if len(g.Services) > 0 {
		g.addSliceOf(pick(g, g.Services...))
	}
}

func (g *generator) addSliceOf(s Service) {
	g.next++
	slice := EndpointSlice{
		Meta:        Meta{Namespace: s.Meta.Namespace, Name: fmt.Sprint("e", g.next), Labels: map[string]string{"kubernetes.io/service-name": s.Meta.Name}},
		AddressType: pick(g, "IPv4", "IPv4", "IPv6", "IPv6", "FQDN"),
	}
	if g.chance(5) {
		slice.Meta.Labels["service.kubernetes.io/headless"] = ""
	}
	for _, p := range s.Spec.Ports {
		name, number := p.Name, pick(g, 8080, 8080, 8081)
		port := EndpointPort{Name: &name, Protocol: p.Protocol, Port: &number}
		switch {
		case g.chance(3):
			port.Name = nil
		case g.chance(3):
			port.Port = nil
		case g.chance(3):
			number = 0
		case g.chance(3):
			name = "unknown"
		}
		slice.Ports = append(slice.Ports, port)
	}
	hints, most := pick(g, "", "", "zones", "nodes", "some", "both"), 5
	if g.chance(20) {
		most = 25
	}
	for range g.IntN(most) {
		slice.Endpoints = append(slice.Endpoints, g.endpoint(slice.AddressType, hints))
	}
	g.Slices = append(g.Slices, slice)
}

// endpoint draws a pod of one of three nodes, a node, or something outside.
func (g *generator) endpoint(kind, hints string) Endpoint {
	n, i := 1+g.IntN(3), 1+g.IntN(6)
	e := Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", n, i), "10.99.99.99"}, NodeName: fmt.Sprint("n", n)}
	switch {
	case g.chance(10):
		e.Addresses[0] = fmt.Sprint("172.16.0.", n)
	case g.chance(10):
		e.Addresses[0], e.NodeName = fmt.Sprint("198.18.0.", i), ""
	case g.chance(5):
		e.Addresses[0] = fmt.Sprintf("010.244.00%d.%d", n, i)
	}
	switch {
	case kind == "FQDN":
		e.Addresses = []string{"example.org"}
	case kind == "IPv6" && e.NodeName == "":
		e.Addresses = []string{fmt.Sprintf("2001:2::%x", i)}
	case kind == "IPv6":
		e.Addresses = []string{fmt.Sprintf("fd00:244:%d::%x", n, i)}
	}
	g.conditions(&e)
	if hints == "zones" || hints == "both" || hints == "some" && g.chance(50) {
		e.Hints = &Hints{ForZones: []Hint{{pick(g, zones...)}}}
	}
	if hints == "nodes" || hints == "both" && g.chance(90) {
		if e.Hints == nil {
			e.Hints = new(Hints)
		}
		e.Hints.ForNodes = []Hint{{fmt.Sprint("n", 1+g.IntN(3))}}
	}
	return e
}

func (g *generator) conditions(e *Endpoint) {
	yes, no := true, false
	e.Conditions = pick(g, Conditions{}, Conditions{}, Conditions{Ready: &yes}, Conditions{Ready: &yes}, Conditions{Ready: &yes, Serving: &yes, Terminating: &no},
		Conditions{Ready: &no}, Conditions{Ready: &no, Serving: &no}, Conditions{Ready: &no, Serving: &yes, Terminating: &yes},
		Conditions{Ready: &no, Serving: &no, Terminating: &yes}, Conditions{Ready: &yes, Serving: &yes, Terminating: &yes}, Conditions{Ready: &no, Terminating: &yes})
}

// packet draws a packet, most to something that a Service has.
func (g *generator) packet() Packet {
	p := Packet{From: netip.MustParseAddr(pick(g, clients...)), Protocol: pick(g, "TCP", "UDP", "SCTP")}
	unmet := func(a netip.AddrPort) bool { return g.meetsAny(Packet{To: a, Protocol: p.Protocol}) == nil }
	if to := slices.DeleteFunc(g.frontends(p.Protocol), unmet); len(to) > 0 && g.chance(90) {
		if p.To = pick(g, to...); p.To.Addr().IsUnspecified() {
			p.To = netip.AddrPortFrom(netip.MustParseAddr(pick(g, g.nodeTargets()...)), p.To.Port())
		}
	} else {
		text := pick(g, "10.96.0.1", "10.96.0.2", "10.96.0.77", "10.96.0.50", "192.0.2.1", "192.0.2.9", "172.16.0.1", "203.0.113.9", "fd00:96::2", "fd00:96::77", "2001:db8::1")
		p.To = netip.AddrPortFrom(netip.MustParseAddr(text), uint16(pick(g, 80, 81, 82, 30000, 30001)))
	}
	for p.From.Is6() != p.To.Addr().Is6() {
		p.From = netip.MustParseAddr(pick(g, clients...))
	}
	return p
}

// nodeTargets returns addresses of nodes and others at which clients try node ports.
func (g *generator) nodeTargets() []string {
	list := append([]string{"172.16.0.1", "172.16.0.9", "172.16.0.2", "fd00:16::1", "fd00:16::2", "192.0.2.1", "192.0.2.9"}, g.Links...)
	for range 3 {
		list = append(list, "172.16.0.1", "fd00:16::1")
	}
	return list
}

func (g *generator) clone() Cluster {
	var c Cluster
	text, err := json.Marshal(g.Cluster)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		panic(err) // plain values
	}
	return c
}
