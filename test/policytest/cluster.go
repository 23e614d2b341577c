// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Cluster is the complete state that decides about traffic, as the API server stores it.
type Cluster struct {
	Namespaces      []corev1.Namespace              `json:"namespaces,omitempty"`
	Nodes           []corev1.Node                   `json:"nodes,omitempty"`
	Pods            []corev1.Pod                    `json:"pods,omitempty"`
	Policies        []networkingv1.NetworkPolicy    `json:"policies,omitempty"`
	ClusterPolicies []v1alpha2.ClusterNetworkPolicy `json:"clusterPolicies,omitempty"`
}

// Clone returns a copy that shares nothing with the cluster.
func (c Cluster) Clone() Cluster {
	return Cluster{
		Namespaces:      clones(c.Namespaces, (*corev1.Namespace).DeepCopy),
		Nodes:           clones(c.Nodes, (*corev1.Node).DeepCopy),
		Pods:            clones(c.Pods, (*corev1.Pod).DeepCopy),
		Policies:        clones(c.Policies, (*networkingv1.NetworkPolicy).DeepCopy),
		ClusterPolicies: clones(c.ClusterPolicies, (*v1alpha2.ClusterNetworkPolicy).DeepCopy),
	}
}

func clones[T any](list []T, clone func(*T) *T) []T {
	out := make([]T, 0, len(list))
	for i := range list {
		out = append(out, *clone(&list[i]))
	}
	return out
}

// podAt returns the pod that has the address, or nil. The address of a pod that has finished may
// belong to another pod already, and a pod with hostNetwork has no address of its own.
func (c Cluster) podAt(addr netip.Addr) *corev1.Pod {
	text := addr.String()
	for i := range c.Pods {
		pod := &c.Pods[i]
		if onPodNetwork(pod) && hasAddress(pod, text) {
			return pod
		}
	}
	return nil
}

func onPodNetwork(pod *corev1.Pod) bool {
	return !finished(pod) && !pod.Spec.HostNetwork
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func hasAddress(pod *corev1.Pod, addr string) bool {
	for _, ip := range pod.Status.PodIPs {
		if ip.IP == addr {
			return true
		}
	}
	return false
}

// nodeAt returns the node that has the address, or nil.
func (c Cluster) nodeAt(addr netip.Addr) *corev1.Node {
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
func gateways(node *corev1.Node) (addrs []netip.Addr) {
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
