// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// direction is a probe seen from one of its two pods.
type direction interface {
	concerns(*api.NetworkPolicy) bool
	allowedBy(*api.NetworkPolicy) bool
	rules(*api.ClusterNetworkPolicy) []clusterRule
	matchesRule(clusterRule) bool
	toItself() bool
}

// incoming is a probe seen from the pod that receives it.
type incoming struct {
	Cluster
	Probe
}

func (in incoming) concerns(np *api.NetworkPolicy) bool {
	return slices.Contains(typesOf(np), api.PolicyTypeIngress)
}

func (in incoming) allowedBy(np *api.NetworkPolicy) bool {
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

func (out outgoing) concerns(np *api.NetworkPolicy) bool {
	return slices.Contains(typesOf(np), api.PolicyTypeEgress)
}

func (out outgoing) allowedBy(np *api.NetworkPolicy) bool {
	for _, rule := range np.Spec.Egress {
		if out.anyPeer(np.Namespace, rule.To, out.To) && out.onAnyPort(out.Probe, rule.Ports) {
			return true
		}
	}
	return false
}

func (out outgoing) toItself() bool { return out.From == out.To }
