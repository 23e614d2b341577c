// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// ICMP is the protocol of probes without a port. Rules cannot name it.
const ICMP api.Protocol = "ICMP"

// ports are those that probes try.
var ports = []int32{80, 81, 82}

// outside are addresses that are not in the cluster.
var outside = []netip.Addr{
	netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("203.0.113.129"),
	netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("2001:db8:1::7"),
}

// Probe is the first packet of a connection, after destination NAT and before source NAT.
type Probe struct {
	From     netip.Addr   `json:"from"`
	To       netip.Addr   `json:"to"`
	Protocol api.Protocol `json:"protocol"`
	Port     int32        `json:"port,omitempty"` // 0 if the protocol is ICMP
}

func (p Probe) String() string {
	if p.Protocol == ICMP {
		return fmt.Sprintf("%s -> %s ICMP", p.From, p.To)
	}
	return fmt.Sprintf("%s -> %s/%s", p.From, netip.AddrPortFrom(p.To, uint16(p.Port)), p.Protocol)
}

// Addresses returns every address of the cluster, also of finished pods, and a few outside. Of the addresses that
// a node has for its pods it returns one of each family, to keep tables small.
func (c Cluster) Addresses() []netip.Addr {
	addrs := slices.Clone(outside)
	for _, pod := range c.Pods {
		for _, ip := range pod.Status.PodIPs {
			addrs = append(addrs, netip.MustParseAddr(ip.IP))
		}
	}
	for i, node := range c.Nodes {
		for j, a := range gateways(&node) {
			if j%2 == i%2 {
				addrs = append(addrs, a)
			}
		}
		for _, a := range node.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				addrs = append(addrs, addr)
			}
		}
	}
	return sorted(addrs)
}

// sorted returns each address once.
func sorted(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// Probes returns one truth table: all probes between two addresses of one family, of which at
// least one is a pod's. The addresses are the cluster's, and more, such as those that it had.
func (c Cluster) Probes(more ...netip.Addr) []Probe {
	var probes []Probe
	addrs := sorted(append(c.Addresses(), more...))
	for _, from := range addrs {
		for _, to := range addrs {
			if from.Is4() == to.Is4() && (c.podAt(from) != nil || c.podAt(to) != nil) {
				probes = append(probes, probesBetween(from, to)...)
			}
		}
	}
	return probes
}

func probesBetween(from, to netip.Addr) []Probe {
	probes := []Probe{{from, to, ICMP, 0}}
	for _, protocol := range []api.Protocol{api.ProtocolTCP, api.ProtocolUDP, api.ProtocolSCTP} {
		for _, port := range ports {
			probes = append(probes, Probe{from, to, protocol, port})
		}
	}
	return probes
}
