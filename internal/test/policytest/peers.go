// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// anyPeer tells whether a rule's peers include the address. A rule without peers includes every
// address, also those outside the cluster.
func (c Cluster) anyPeer(namespace string, peers []api.NetworkPolicyPeer, addr netip.Addr) bool {
	if len(peers) == 0 {
		return true
	}
	for _, peer := range peers {
		if c.isPeer(namespace, peer, addr) {
			return true
		}
	}
	return false
}

// isPeer tells whether one peer of a policy in the namespace includes the address.
func (c Cluster) isPeer(namespace string, peer api.NetworkPolicyPeer, addr netip.Addr) bool {
	if peer.IPBlock != nil {
		return inBlock(peer.IPBlock, addr)
	}
	pod := c.podAt(addr)
	if pod == nil {
		return false
	}
	switch {
	case peer.NamespaceSelector != nil && peer.PodSelector != nil:
		return Matches(peer.NamespaceSelector, c.labelsOf(pod.Namespace)) && Matches(peer.PodSelector, pod.Labels)
	case peer.NamespaceSelector != nil:
		return Matches(peer.NamespaceSelector, c.labelsOf(pod.Namespace))
	case peer.PodSelector != nil:
		return pod.Namespace == namespace && Matches(peer.PodSelector, pod.Labels)
	default:
		return false
	}
}

func inBlock(block *api.IPBlock, addr netip.Addr) bool {
	for _, except := range block.Except {
		if contains(except, addr) {
			return false
		}
	}
	return contains(block.CIDR, addr)
}

// contains tells whether an address is in a prefix. The prefix may have host bits, which do not
// count. A prefix contains only addresses of its family.
func contains(cidr string, addr netip.Addr) bool {
	prefix, err := netip.ParsePrefix(cidr)
	return err == nil && prefix.Contains(addr)
}
