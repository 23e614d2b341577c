// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// Cluster is the complete state that decides about traffic, as the API server stores it.
type Cluster struct {
	Namespaces      []api.Namespace            `json:"namespaces,omitempty"`
	Nodes           []api.Node                 `json:"nodes,omitempty"`
	Pods            []api.Pod                  `json:"pods,omitempty"`
	Policies        []api.NetworkPolicy        `json:"policies,omitempty"`
	ClusterPolicies []api.ClusterNetworkPolicy `json:"clusterPolicies,omitempty"`
}

// podAt returns the pod that has the address, or nil. The address of a pod that has finished may
// belong to another pod already, and a pod with hostNetwork has no address of its own.
func (c Cluster) podAt(addr netip.Addr) *api.Pod {
	text := addr.String()
	for i := range c.Pods {
		pod := &c.Pods[i]
		if onPodNetwork(pod) && hasAddress(pod, text) {
			return pod
		}
	}
	return nil
}

func onPodNetwork(pod *api.Pod) bool {
	return !finished(pod) && !pod.Spec.HostNetwork
}

func finished(pod *api.Pod) bool {
	return pod.Status.Phase == api.PodSucceeded || pod.Status.Phase == api.PodFailed
}

func hasAddress(pod *api.Pod, addr string) bool {
	for _, ip := range pod.Status.PodIPs {
		if ip.IP == addr {
			return true
		}
	}
	return false
}

// nodeAt returns the node that has the address, or nil.
func (c Cluster) nodeAt(addr netip.Addr) *api.Node {
	text := addr.String()
	for i := range c.Nodes {
		for _, a := range c.Nodes[i].Status.Addresses {
			if a.Address == text {
				return &c.Nodes[i]
			}
		}
		if slices.Contains(gateways(&c.Nodes[i]), addr) && c.podAt(addr) == nil {
			return &c.Nodes[i]
		}
	}
	return nil
}

// gateways returns the first two addresses of a node's podCIDRs. By these its pods, and those of other nodes,
// reach the node too.
func gateways(node *api.Node) (addrs []netip.Addr) {
	for _, cidr := range node.Spec.PodCIDRs {
		first := netip.MustParsePrefix(cidr).Masked().Addr()
		addrs = append(addrs, first, first.Next())
	}
	return addrs
}

// labelsOf returns the labels of the namespace with this name.
func (c Cluster) labelsOf(namespace string) map[string]string {
	for _, ns := range c.Namespaces {
		if ns.Name == namespace {
			return ns.Labels
		}
	}
	return nil
}
