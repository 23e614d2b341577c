// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// clusterRule is an ingress or egress rule of a ClusterNetworkPolicy.
type clusterRule struct {
	action    api.ClusterNetworkPolicyRuleAction
	peers     []api.ClusterNetworkPolicyEgressPeer // an ingress peer has fewer fields
	protocols []api.ClusterNetworkPolicyProtocol
}

// tiers asks the Admin tier, the NetworkPolicies and the Baseline tier, in this order, until one
// decides. NetworkPolicies that isolate a pod never keep it from itself.
func (c Cluster) tiers(pod *api.Pod, d direction) Side {
	if side, decided := c.tier(api.AdminTier, pod, d); decided {
		return side
	}
	if side, decided := c.networkPolicies(pod, d); decided {
		if d.toItself() {
			return free
		}
		return side
	}
	if side, decided := c.tier(api.BaselineTier, pod, d); decided {
		return side
	}
	return free
}

// tier asks one tier's policies by priority. The first rule that matches decides, or passes the
// probe on to the next tier.
func (c Cluster) tier(tier api.Tier, pod *api.Pod, d direction) (side Side, decided bool) {
	for _, cnp := range c.byPriority(tier) {
		if !c.isSubject(cnp.Spec.Subject, pod) {
			continue
		}
		for _, rule := range d.rules(cnp) {
			if !d.matchesRule(rule) {
				continue
			}
			switch rule.effect() {
			case api.ClusterNetworkPolicyRuleActionAccept:
				return Side{Allowed: true, By: []string{cnp.Name}}, true
			case api.ClusterNetworkPolicyRuleActionDeny:
				return Side{By: []string{cnp.Name}}, true
			default:
				return Side{}, false
			}
		}
	}
	return Side{}, false
}

func (c Cluster) byPriority(tier api.Tier) []*api.ClusterNetworkPolicy {
	var list []*api.ClusterNetworkPolicy
	for i := range c.ClusterPolicies {
		if c.ClusterPolicies[i].Spec.Tier == tier {
			list = append(list, asUnderstood(&c.ClusterPolicies[i]))
		}
	}
	slices.SortStableFunc(list, func(a, b *api.ClusterNetworkPolicy) int {
		return cmp.Compare(a.Spec.Priority, b.Spec.Priority)
	})
	return list
}

func (c Cluster) isSubject(s api.ClusterNetworkPolicySubject, pod *api.Pod) bool {
	switch {
	case s.Namespaces != nil:
		return Matches(s.Namespaces, c.labelsOf(pod.Namespace))
	case s.Pods != nil:
		return c.isNamespacedPod(s.Pods, pod)
	default:
		return false
	}
}

func (c Cluster) isNamespacedPod(s *api.NamespacedPod, pod *api.Pod) bool {
	return Matches(&s.NamespaceSelector, c.labelsOf(pod.Namespace)) && Matches(&s.PodSelector, pod.Labels)
}

func (in incoming) rules(cnp *api.ClusterNetworkPolicy) []clusterRule {
	var rules []clusterRule
	for _, r := range cnp.Spec.Ingress {
		var peers []api.ClusterNetworkPolicyEgressPeer
		for _, peer := range r.From {
			peers = append(peers, api.ClusterNetworkPolicyEgressPeer{Namespaces: peer.Namespaces, Pods: peer.Pods})
		}
		rules = append(rules, clusterRule{r.Action, peers, r.Protocols})
	}
	return rules
}

func (out outgoing) rules(cnp *api.ClusterNetworkPolicy) []clusterRule {
	var rules []clusterRule
	for _, r := range cnp.Spec.Egress {
		rules = append(rules, clusterRule{r.Action, r.To, r.Protocols})
	}
	return rules
}

// unknown tells whether a rule has a peer of a newer API version. Such a peer arrives without any
// field. The rule must fail closed.
func (r clusterRule) unknown() bool {
	return slices.ContainsFunc(r.peers, func(p api.ClusterNetworkPolicyEgressPeer) bool {
		return p.Namespaces == nil && p.Pods == nil && p.Nodes == nil && p.Networks == nil && p.DomainNames == nil
	})
}

// effect returns the rule's action, or Deny if the rule has an unknown peer.
func (r clusterRule) effect() api.ClusterNetworkPolicyRuleAction {
	if r.unknown() {
		return api.ClusterNetworkPolicyRuleActionDeny
	}
	return r.action
}

func (in incoming) matchesRule(r clusterRule) bool { return in.ruleMatches(r, in.Probe, in.From) }

func (out outgoing) matchesRule(r clusterRule) bool { return out.ruleMatches(r, out.Probe, out.To) }

// ruleMatches tells whether a rule applies to a probe, whose other end has the given address. A
// rule with an unknown peer applies to no probe if its action is Accept, and otherwise to every
// probe.
func (c Cluster) ruleMatches(r clusterRule, p Probe, other netip.Addr) bool {
	if r.unknown() {
		return r.action != api.ClusterNetworkPolicyRuleActionAccept
	}
	return c.anyClusterPeer(r.peers, other) && c.anyProtocol(p, r.protocols)
}
