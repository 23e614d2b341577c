// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

import (
	"net/netip"
	"slices"
	"strings"
)

// candidate is an endpoint of a port.
type candidate struct {
	Endpoint
	at    netip.AddrPort
	slice string
}

func yes(condition *bool) bool { return condition == nil || *condition }

func (e candidate) ready() bool   { return yes(e.Conditions.Ready) }
func (e candidate) serving() bool { return yes(e.Conditions.Serving) }
func (e candidate) terminating() bool {
	return e.Conditions.Terminating != nil && *e.Conditions.Terminating
}

// better reports whether an entry counts, and not another of the same address and port.
func (e candidate) better(other candidate) bool {
	switch {
	case e.terminating() != other.terminating():
		return other.terminating()
	case e.ready() != other.ready():
		return e.ready()
	case e.serving() != other.serving():
		return e.serving()
	}
	return e.slice < other.slice
}

// endpoints returns each endpoint of the port once.
func (m *meeting) endpoints() []candidate {
	return m.in.endpointsOf(m.service, m.port.Name, protocolOf(m.port.Protocol), m.v6)
}

func (c *Cluster) endpointsOf(s *Service, port, protocol string, v6 bool) []candidate {
	best := make(map[netip.AddrPort]candidate)
	for _, slice := range c.slicesOf(s, v6) {
		for _, p := range slice.Ports {
			if p.Name == nil || *p.Name != port || protocolOf(p.Protocol) != protocol || p.Port == nil || *p.Port == 0 {
				continue
			}
			for _, e := range slice.Endpoints {
				addr := readAll(e.Addresses[:1], v6)
				if len(addr) == 0 {
					continue
				}
				one := candidate{e, netip.AddrPortFrom(addr[0], uint16(*p.Port)), slice.Meta.Name}
				if other, ok := best[one.at]; !ok || one.better(other) {
					best[one.at] = one
				}
			}
		}
	}
	var list []candidate
	for _, e := range best {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b candidate) int { return strings.Compare(a.at.String(), b.at.String()) })
	return list
}

// slicesOf returns the slices of a Service in a family, without those that say that they are of a headless one.
func (c *Cluster) slicesOf(s *Service, v6 bool) (list []EndpointSlice) {
	kind := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
	for _, slice := range c.Slices {
		_, headless := slice.Meta.Labels["service.kubernetes.io/headless"]
		if slice.Meta.Namespace == s.Meta.Namespace && slice.Meta.Labels["kubernetes.io/service-name"] == s.Meta.Name && !headless && slice.AddressType == kind {
			list = append(list, slice)
		}
	}
	return list
}

// clusterList returns the endpoints for a client that is not kept on this node.
func (m *meeting) clusterList() []netip.AddrPort {
	all := m.endpoints()
	var ready, draining []candidate
	for _, e := range all {
		if e.ready() {
			ready = append(ready, e)
		} else if e.serving() && e.terminating() {
			draining = append(draining, e)
		}
	}
	if len(ready) == 0 {
		return at(draining)
	}
	if near := forNode(ready, m.in.Node.Meta.Name); near != nil {
		return at(near)
	}
	if near := forZone(ready, m.in.Node.Meta.Labels["topology.kubernetes.io/zone"]); near != nil {
		return at(near)
	}
	return at(ready)
}

// localList returns the endpoints for a client that is kept on this node.
func (m *meeting) localList() []netip.AddrPort {
	var ready, draining []candidate
	for _, e := range m.endpoints() {
		switch {
		case !m.in.isLocalEndpoint(e):
		case e.ready():
			ready = append(ready, e)
		case e.serving() && e.terminating():
			draining = append(draining, e)
		}
	}
	if len(ready) > 0 {
		return at(ready)
	}
	return at(draining)
}

func (c *Cluster) isLocalEndpoint(e candidate) bool {
	return e.NodeName != "" && e.NodeName == c.Node.Meta.Name
}

// forNode returns the endpoints hinted for a node, if each one has hints for nodes.
func forNode(ready []candidate, node string) (list []candidate) {
	for _, e := range ready {
		if e.Hints == nil || len(e.Hints.ForNodes) == 0 {
			return nil
		}
		if slices.Contains(e.Hints.ForNodes, Hint{node}) {
			list = append(list, e)
		}
	}
	return list
}

func forZone(ready []candidate, zone string) (list []candidate) {
	for _, e := range ready {
		if e.Hints == nil || len(e.Hints.ForZones) == 0 || zone == "" {
			return nil
		}
		if slices.Contains(e.Hints.ForZones, Hint{zone}) {
			list = append(list, e)
		}
	}
	return list
}

func at(list []candidate) (addrs []netip.AddrPort) {
	for _, e := range list {
		addrs = append(addrs, e.at)
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	return addrs
}
