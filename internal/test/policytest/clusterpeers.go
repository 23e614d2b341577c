// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

func (c Cluster) anyClusterPeer(peers []api.ClusterNetworkPolicyEgressPeer, addr netip.Addr) bool {
	for _, peer := range peers {
		if c.isClusterPeer(peer, addr) {
			return true
		}
	}
	return false
}

// isClusterPeer tells whether a peer of a ClusterNetworkPolicy includes the address. Domain names
// match nothing: no probe knows by which name its destination was found.
func (c Cluster) isClusterPeer(peer api.ClusterNetworkPolicyEgressPeer, addr netip.Addr) bool {
	pod, node := c.podAt(addr), c.nodeAt(addr)
	switch {
	case peer.Namespaces != nil:
		return pod != nil && Matches(peer.Namespaces, c.labelsOf(pod.Namespace))
	case peer.Pods != nil:
		return pod != nil && c.isNamespacedPod(peer.Pods, pod)
	case peer.Nodes != nil:
		return node != nil && Matches(peer.Nodes, node.Labels)
	default:
		return slices.ContainsFunc(peer.Networks, func(cidr string) bool { return contains(cidr, addr) })
	}
}

// anyProtocol tells whether a rule's protocols include the probe's. A rule without protocols
// includes all.
func (c Cluster) anyProtocol(p Probe, protocols []api.ClusterNetworkPolicyProtocol) bool {
	return len(protocols) == 0 || slices.ContainsFunc(protocols, func(pr api.ClusterNetworkPolicyProtocol) bool {
		switch {
		case pr.TCP != nil:
			return p.Protocol == api.ProtocolTCP && inPort(pr.TCP.DestinationPort, p.Port)
		case pr.UDP != nil:
			return p.Protocol == api.ProtocolUDP && inPort(pr.UDP.DestinationPort, p.Port)
		case pr.SCTP != nil:
			return p.Protocol == api.ProtocolSCTP && inPort(pr.SCTP.DestinationPort, p.Port)
		default:
			return pr.DestinationNamedPort != "" && c.isNamed(p, pr.DestinationNamedPort)
		}
	})
}

func inPort(port *api.Port, number int32) bool {
	switch {
	case port == nil:
		return true
	case port.Range != nil:
		return port.Range.Start <= number && number <= port.Range.End
	default:
		return port.Number == number
	}
}
