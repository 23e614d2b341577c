// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// direction is a probe seen from one of its two pods.
type direction interface {
	concerns(*networkingv1.NetworkPolicy) bool
	allowedBy(*networkingv1.NetworkPolicy) bool
	rules(*v1alpha2.ClusterNetworkPolicy) []clusterRule
	matchesRule(clusterRule) bool
	toItself() bool
}

// incoming is a probe seen from the pod that receives it.
type incoming struct {
	Cluster
	Probe
}

func (in incoming) concerns(np *networkingv1.NetworkPolicy) bool {
	return slices.Contains(typesOf(np), networkingv1.PolicyTypeIngress)
}

func (in incoming) allowedBy(np *networkingv1.NetworkPolicy) bool {
	for _, rule := range np.Spec.Ingress {
		if in.anyPeer(np.Namespace, rule.From, in.From) && in.onAnyPort(in.Probe, rule.Ports) {
			return true
		}
	}
	return false
}

// toItself tells whether the probe comes back to the pod that sent it.
func (in incoming) toItself() bool { return in.From == in.To }

// outgoing is a probe seen from the pod that sends it.
type outgoing struct {
	Cluster
	Probe
}

func (out outgoing) concerns(np *networkingv1.NetworkPolicy) bool {
	return slices.Contains(typesOf(np), networkingv1.PolicyTypeEgress)
}

func (out outgoing) allowedBy(np *networkingv1.NetworkPolicy) bool {
	for _, rule := range np.Spec.Egress {
		if out.anyPeer(np.Namespace, rule.To, out.To) && out.onAnyPort(out.Probe, rule.Ports) {
			return true
		}
	}
	return false
}

func (out outgoing) toItself() bool { return out.From == out.To }
