// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

func (g *Generator) addClusterPolicy() {
	name := freeName("policy", func(name string) bool {
		return slices.ContainsFunc(g.ClusterPolicies, func(cnp api.ClusterNetworkPolicy) bool { return cnp.Name == name })
	})
	cnp := api.ClusterNetworkPolicy{ObjectMeta: api.ObjectMeta{Name: name}, Spec: g.clusterSpec()}
	g.giveLaterField(&cnp)
	g.ClusterPolicies = append(g.ClusterPolicies, cnp)
}

// clusterSpec draws a priority that no other policy has: the API leaves the order of equal
// priorities open.
func (g *Generator) clusterSpec() api.ClusterNetworkPolicySpec {
	spec := api.ClusterNetworkPolicySpec{
		Tier: pick(g, api.AdminTier, api.BaselineTier), Priority: g.priority(), Subject: g.subject(),
	}
	for range g.IntN(4) {
		spec.Ingress = append(spec.Ingress, api.ClusterNetworkPolicyIngressRule{
			Action: g.action(), From: several(g, 0, 2, g.ingressPeer), Protocols: several(g, 40, 2, g.protocol),
		})
	}
	for range g.IntN(4) {
		spec.Egress = append(spec.Egress, g.egressRule())
	}
	return spec
}

func (g *Generator) priority() int32 {
	priority := g.Int32N(1001)
	for _, cnp := range g.ClusterPolicies {
		if cnp.Spec.Priority == priority {
			return g.priority()
		}
	}
	return priority
}

func (g *Generator) action() api.ClusterNetworkPolicyRuleAction {
	return pick(g, api.ClusterNetworkPolicyRuleActionAccept, api.ClusterNetworkPolicyRuleActionDeny, api.ClusterNetworkPolicyRuleActionPass)
}

func (g *Generator) subject() api.ClusterNetworkPolicySubject {
	switch n := g.IntN(100); {
	case n < 50: // many policies have a pod in common, so that their order counts
		return api.ClusterNetworkPolicySubject{Namespaces: &api.LabelSelector{}}
	case n < 75:
		return api.ClusterNetworkPolicySubject{Namespaces: g.namespaceSelector()}
	}
	return api.ClusterNetworkPolicySubject{Pods: g.namespacedPod()}
}

func (g *Generator) namespacedPod() *api.NamespacedPod {
	return &api.NamespacedPod{NamespaceSelector: *g.namespaceSelector(), PodSelector: *g.selector()}
}

// ingressPeer is, rarely, without any field, as one of a kind that a later version added.
func (g *Generator) ingressPeer() api.ClusterNetworkPolicyIngressPeer {
	switch n := g.IntN(100); {
	case n < 3:
		return api.ClusterNetworkPolicyIngressPeer{}
	case n < 50:
		return api.ClusterNetworkPolicyIngressPeer{Namespaces: g.namespaceSelector()}
	default:
		return api.ClusterNetworkPolicyIngressPeer{Pods: g.namespacedPod()}
	}
}

// egressRule has named ports only if its peers have them: the API server refuses other rules.
func (g *Generator) egressRule() api.ClusterNetworkPolicyEgressRule {
	rule := api.ClusterNetworkPolicyEgressRule{Action: g.action(), Protocols: several(g, 40, 2, g.protocol)}
	draw := g.egressPeer
	if hasNamed(rule.Protocols) {
		draw = g.podPeer
	}
	rule.To = several(g, 0, 2, draw)
	return rule
}

func hasNamed(protocols []api.ClusterNetworkPolicyProtocol) bool {
	for _, p := range protocols {
		if p.DestinationNamedPort != "" {
			return true
		}
	}
	return false
}

func (g *Generator) podPeer() api.ClusterNetworkPolicyEgressPeer {
	peer := g.ingressPeer()
	return api.ClusterNetworkPolicyEgressPeer{Namespaces: peer.Namespaces, Pods: peer.Pods}
}

func (g *Generator) egressPeer() api.ClusterNetworkPolicyEgressPeer {
	switch n := g.IntN(100); {
	case n < 50:
		return g.podPeer()
	case n < 65:
		return api.ClusterNetworkPolicyEgressPeer{Nodes: g.selector()}
	default:
		return api.ClusterNetworkPolicyEgressPeer{Networks: several(g, 0, 1, g.network)}
	}
}

func (g *Generator) network() string {
	return g.prefixOf(g.anyAddress(), 0).Masked().String()
}

func (g *Generator) protocol() api.ClusterNetworkPolicyProtocol {
	switch port := g.clusterPort(); g.IntN(4) {
	case 0:
		return api.ClusterNetworkPolicyProtocol{TCP: &api.ClusterNetworkPolicyPorts{DestinationPort: port}}
	case 1:
		return api.ClusterNetworkPolicyProtocol{UDP: &api.ClusterNetworkPolicyPorts{DestinationPort: port}}
	case 2:
		return api.ClusterNetworkPolicyProtocol{SCTP: &api.ClusterNetworkPolicyPorts{DestinationPort: port}}
	default:
		return api.ClusterNetworkPolicyProtocol{DestinationNamedPort: g.portName()}
	}
}

func (g *Generator) clusterPort() *api.Port {
	if number := g.port(); g.chance(50) {
		return &api.Port{Range: &api.PortRange{Start: number, End: number + 1 + g.Int32N(2)}}
	} else {
		return &api.Port{Number: number}
	}
}
