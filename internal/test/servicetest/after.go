// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

import (
	"net/netip"
	"slices"
)

// Flow is a frontend of UDP, with the endpoints to which its flows may go on.
type Flow struct {
	To      netip.AddrPort // a node port has the address 0.0.0.0 or ::
	Serving []netip.AddrPort
}

// Flows returns all frontends of UDP, sorted. Policies, hints and termination end no flow.
func (c Cluster) Flows() (list []Flow) {
	for _, to := range c.frontends("UDP") {
		if m := c.meetsAny(Packet{To: to, Protocol: "UDP"}); m != nil {
			var serving []candidate
			for _, e := range m.endpoints() {
				if e.serving() {
					serving = append(serving, e)
				}
			}
			list = append(list, Flow{to, at(serving)})
		}
	}
	return list
}

// meetsAny is meets or, for an unspecified address, meetsNodePort.
func (c *Cluster) meetsAny(p Packet) *meeting {
	if !p.To.Addr().IsUnspecified() {
		return c.meets(p)
	}
	everywhere := *c
	everywhere.Flags.NodePortAddresses, everywhere.Links = []string{"0.0.0.0/0", "::/0"}, []string{"198.18.0.1", "2001:2::1"}
	at := netip.MustParseAddr("198.18.0.1")
	if p.To.Addr().Is6() {
		at = netip.MustParseAddr("2001:2::1")
	}
	p.To = netip.AddrPortFrom(at, p.To.Port())
	return everywhere.meetsNodePort(p)
}

// frontends returns everything to which a Service may answer, sorted, also what other Services have.
func (c *Cluster) frontends(protocol string) (list []netip.AddrPort) {
	for _, s := range c.ours() {
		for _, p := range s.Spec.Ports {
			if protocolOf(p.Protocol) != protocol {
				continue
			}
			for _, v6 := range []bool{false, true} {
				for _, by := range []string{"clusterIP", "loadBalancer", "externalIP"} {
					for _, a := range c.addressesOf(s, by, v6) {
						list = append(list, netip.AddrPortFrom(a, uint16(p.Port)))
					}
				}
				if p.NodePort != 0 {
					list = append(list, netip.AddrPortFrom(unspecified(v6), uint16(p.NodePort)))
				}
			}
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// Check is a port that answers a load balancer's health checks, in one family.
type Check struct {
	Service string // NAMESPACE/NAME
	Port    int
	V6      bool
	Local   int // addresses of ready endpoints on this node
}

// Checks returns the health checks, sorted by Service and family. A Service of one family answers at addresses of both.
func (c Cluster) Checks() (list []Check) {
	for _, s := range c.ours() {
		if s.Spec.Type != "LoadBalancer" || s.Spec.ExternalTrafficPolicy != "Local" || s.Spec.HealthCheckNodePort == 0 || len(s.Spec.Ports) == 0 {
			continue
		}
		has4, has6 := len(c.addressesOf(s, "clusterIP", false)) > 0, len(c.addressesOf(s, "clusterIP", true)) > 0
		if !has4 && !has6 {
			continue
		}
		name := s.Meta.Namespace + "/" + s.Meta.Name
		list = append(list,
			Check{name, s.Spec.HealthCheckNodePort, false, c.localReady(s, !has4)},
			Check{name, s.Spec.HealthCheckNodePort, true, c.localReady(s, has6)})
	}
	return list
}

// localReady counts addresses, whatever their ports are called.
func (c *Cluster) localReady(s *Service, v6 bool) int {
	addrs := make(map[netip.Addr]bool)
	for _, slice := range c.slicesOf(s, v6) {
		for _, p := range slice.Ports {
			if p.Name == nil {
				continue
			}
			for _, e := range c.endpointsOf(s, *p.Name, protocolOf(p.Protocol), v6) {
				if e.ready() && c.isLocalEndpoint(e) {
					addrs[e.at.Addr()] = true
				}
			}
		}
	}
	return len(addrs)
}

func unspecified(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
