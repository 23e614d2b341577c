// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// HealthCheck is a port at which a load balancer asks whether this node has endpoints of a Service with
// externalTrafficPolicy Local. It is open on the addresses of one family that have node ports.
type HealthCheck struct {
	Service Name
	Port    uint16
	IPv6    bool
	Local   int // addresses of ready endpoints on this node; also the header X-Load-Balancing-Endpoint-Weight
}

// Answer returns the status of HTTP and the JSON of the answer. healthy says whether the node's rules are current.
func (h HealthCheck) Answer(healthy bool) (status int, body string) {
	status = 503
	if healthy && h.Local > 0 {
		status = 200
	}
	return status, fmt.Sprintf(`{"service":{"namespace":%q,"name":%q},"localEndpoints":%d,"serviceProxyHealthy":%t}`,
		h.Service.Namespace, h.Service.Name, h.Local, healthy)
}

// Health returns the checks of all Services, sorted.
func (p *Program) Health() (list []HealthCheck) {
	for _, name := range slices.SortedFunc(maps.Keys(p.health), Name.compare) {
		list = append(list, p.health[name]...)
	}
	return list
}

func (n Name) compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// healthOf returns the checks of a Service, one for each family of the node's addresses. In a family in which the Service has no cluster IP, the answer
// is that of the other one: a load balancer may ask at any address of a node (e2e "should only target nodes with endpoints"). kube-proxy
// 1.36 is silent there.
func healthOf(svc *Service, all []*Slice, n *Node) (list []HealthCheck) {
	if svc.Type != TypeLoadBalancer || !svc.ExternalLocal || svc.HealthCheckNodePort == 0 || len(svc.ClusterIPs) == 0 {
		return nil
	}
	for _, ipv6 := range []bool{false, true} {
		of := ipv6
		if !slices.ContainsFunc(svc.ClusterIPs, family(ipv6)) {
			of = !ipv6
		}
		list = append(list, HealthCheck{svc.Name, svc.HealthCheckNodePort, ipv6, localReady(all, n, of)})
	}
	return list
}

// localReady counts the addresses on this node that have a ready endpoint of any port.
func localReady(list []*Slice, n *Node, ipv6 bool) int {
	ready := make(map[netip.Addr]bool)
	eachReady(list, ipv6, func(e *candidate) {
		if n.has(e) {
			ready[e.Address] = true
		}
	})
	return len(ready)
}

// ReadyNodes returns the nodes that have a ready endpoint of any port of a Service, sorted. The slices are those of the Service.
func ReadyNodes(list []*Slice, ipv6 bool) (nodes []string) {
	eachReady(list, ipv6, func(e *candidate) {
		if e.Node != "" {
			nodes = append(nodes, e.Node)
		}
	})
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// eachReady calls do with the ready endpoints of each port that slices have. One that terminates is ready only if the Service publishes such.
func eachReady(list []*Slice, ipv6 bool, do func(*candidate)) {
	seen := make(map[SlicePort]bool)
	for _, slice := range list {
		for _, sp := range slice.Ports {
			key := SlicePort{sp.Name, sp.Protocol, 0}
			if seen[key] {
				continue
			}
			seen[key] = true
			for _, e := range endpointsOf(list, ServicePort{Name: sp.Name, Protocol: sp.Protocol}, ipv6) {
				if e.Ready {
					do(&e)
				}
			}
		}
	}
}
