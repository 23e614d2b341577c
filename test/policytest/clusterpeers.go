// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

func (c Cluster) anyClusterPeer(peers []v1alpha2.ClusterNetworkPolicyEgressPeer, addr netip.Addr) bool {
	for _, peer := range peers {
		if c.isClusterPeer(peer, addr) {
			return true
		}
	}
	return false
}

// isClusterPeer tells whether a peer of a ClusterNetworkPolicy includes the address. Domain names
// match nothing: no probe knows by which name its destination was found.
func (c Cluster) isClusterPeer(peer v1alpha2.ClusterNetworkPolicyEgressPeer, addr netip.Addr) bool {
	pod, node := c.podAt(addr), c.nodeAt(addr)
	switch {
	case peer.Namespaces != nil:
		return pod != nil && matches(peer.Namespaces, c.labelsOf(pod.Namespace))
	case peer.Pods != nil:
		return pod != nil && c.isNamespacedPod(peer.Pods, pod)
	case peer.Nodes != nil:
		return node != nil && matches(peer.Nodes, node.Labels)
	default:
		return slices.ContainsFunc(peer.Networks, func(cidr v1alpha2.CIDR) bool { return contains(string(cidr), addr) })
	}
}

// anyProtocol tells whether a rule's protocols include the probe's. A rule without protocols
// includes all.
func (c Cluster) anyProtocol(p Probe, protocols []v1alpha2.ClusterNetworkPolicyProtocol) bool {
	return len(protocols) == 0 || slices.ContainsFunc(protocols, func(pr v1alpha2.ClusterNetworkPolicyProtocol) bool {
		switch {
		case pr.TCP != nil:
			return p.Protocol == corev1.ProtocolTCP && inPort(pr.TCP.DestinationPort, p.Port)
		case pr.UDP != nil:
			return p.Protocol == corev1.ProtocolUDP && inPort(pr.UDP.DestinationPort, p.Port)
		case pr.SCTP != nil:
			return p.Protocol == corev1.ProtocolSCTP && inPort(pr.SCTP.DestinationPort, p.Port)
		default:
			return pr.DestinationNamedPort != "" && c.isNamed(p, pr.DestinationNamedPort)
		}
	})
}

func inPort(port *v1alpha2.Port, number int32) bool {
	switch {
	case port == nil:
		return true
	case port.Range != nil:
		return port.Range.Start <= number && number <= port.Range.End
	default:
		return port.Number == number
	}
}
