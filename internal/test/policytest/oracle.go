// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// Verdict is the oracle's answer for one probe.
type Verdict struct {
	Allowed bool
	// Egress and Ingress are the answers of the two sides. Both must allow.
	Egress, Ingress Side
}

// Side is the answer of the policies of one pod in one direction.
type Side struct {
	Allowed bool
	// By lists all policies that may be named as the deciding one: NAMESPACE/NAME, or NAME of a
	// cluster policy. By is empty if no policy decided.
	By []string
}

var free = Side{Allowed: true}

// MayName tells whether a policy may be named as the deciding one.
func (v Verdict) MayName(policy string) bool {
	for _, side := range []Side{v.Egress, v.Ingress} {
		if side.Allowed == v.Allowed && slices.Contains(side.By, policy) {
			return true
		}
	}
	return false
}

// Decide answers for one probe.
func (c Cluster) Decide(p Probe) Verdict {
	v := Verdict{Egress: c.egress(p), Ingress: c.ingress(p)}
	v.Allowed = v.Egress.Allowed && v.Ingress.Allowed
	return v
}

func (c Cluster) egress(p Probe) Side {
	pod := c.podAt(p.From)
	if pod == nil {
		return free
	}
	return c.tiers(pod, outgoing{c, p})
}

func (c Cluster) ingress(p Probe) Side {
	pod := c.podAt(p.To)
	if pod == nil || c.isNodeOf(pod, p) {
		return free
	}
	return c.tiers(pod, incoming{c, p})
}

// isNodeOf tells whether the probe comes from the node on which the pod runs.
func (c Cluster) isNodeOf(pod *api.Pod, p Probe) bool {
	node := c.nodeAt(p.From)
	return node != nil && node.Name == pod.Spec.NodeName
}

// networkPolicies asks the NetworkPolicies that select the pod. If no policy selects the pod, they
// decide nothing.
func (c Cluster) networkPolicies(pod *api.Pod, d direction) (side Side, decided bool) {
	var selecting, allowing []string
	for i := range c.Policies {
		np := &c.Policies[i]
		if np.Namespace != pod.Namespace || !d.concerns(np) || !Matches(&np.Spec.PodSelector, pod.Labels) {
			continue
		}
		selecting = append(selecting, np.Namespace+"/"+np.Name)
		if d.allowedBy(np) {
			allowing = append(allowing, np.Namespace+"/"+np.Name)
		}
	}
	switch {
	case len(selecting) == 0:
		return Side{}, false
	case len(allowing) == 0:
		return Side{By: selecting}, true
	default:
		return Side{Allowed: true, By: allowing}, true
	}
}

// typesOf returns the directions in which a policy isolates. If a policy has no policyTypes,
// typesOf uses the API server's default.
func typesOf(np *api.NetworkPolicy) []api.PolicyType {
	switch {
	case len(np.Spec.PolicyTypes) > 0:
		return np.Spec.PolicyTypes
	case len(np.Spec.Egress) > 0:
		return []api.PolicyType{api.PolicyTypeIngress, api.PolicyTypeEgress}
	default:
		return []api.PolicyType{api.PolicyTypeIngress}
	}
}
