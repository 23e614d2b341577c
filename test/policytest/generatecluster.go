// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

func (g *Generator) addClusterPolicy() {
	name := freeName("policy", func(name string) bool {
		return slices.ContainsFunc(g.ClusterPolicies, func(cnp v1alpha2.ClusterNetworkPolicy) bool { return cnp.Name == name })
	})
	cnp := v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: g.clusterSpec()}
	g.giveLaterField(&cnp)
	g.ClusterPolicies = append(g.ClusterPolicies, cnp)
}

// clusterSpec draws a priority that no other policy has: the API leaves the order of equal
// priorities open.
func (g *Generator) clusterSpec() v1alpha2.ClusterNetworkPolicySpec {
	spec := v1alpha2.ClusterNetworkPolicySpec{
		Tier: pick(g, v1alpha2.AdminTier, v1alpha2.BaselineTier), Priority: g.priority(), Subject: g.subject(),
	}
	for range g.IntN(4) {
		spec.Ingress = append(spec.Ingress, v1alpha2.ClusterNetworkPolicyIngressRule{
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

func (g *Generator) action() v1alpha2.ClusterNetworkPolicyRuleAction {
	return pick(g, v1alpha2.ClusterNetworkPolicyRuleActionAccept, v1alpha2.ClusterNetworkPolicyRuleActionDeny, v1alpha2.ClusterNetworkPolicyRuleActionPass)
}

func (g *Generator) subject() v1alpha2.ClusterNetworkPolicySubject {
	switch n := g.IntN(100); {
	case n < 50: // many policies have a pod in common, so that their order counts
		return v1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}}
	case n < 75:
		return v1alpha2.ClusterNetworkPolicySubject{Namespaces: g.namespaceSelector()}
	}
	return v1alpha2.ClusterNetworkPolicySubject{Pods: g.namespacedPod()}
}

func (g *Generator) namespacedPod() *v1alpha2.NamespacedPod {
	return &v1alpha2.NamespacedPod{NamespaceSelector: *g.namespaceSelector(), PodSelector: *g.selector()}
}

// ingressPeer is, rarely, without any field, as one of a kind that a later version added.
func (g *Generator) ingressPeer() v1alpha2.ClusterNetworkPolicyIngressPeer {
	switch n := g.IntN(100); {
	case n < 3:
		return v1alpha2.ClusterNetworkPolicyIngressPeer{}
	case n < 50:
		return v1alpha2.ClusterNetworkPolicyIngressPeer{Namespaces: g.namespaceSelector()}
	default:
		return v1alpha2.ClusterNetworkPolicyIngressPeer{Pods: g.namespacedPod()}
	}
}

// egressRule has named ports only if its peers have them: the API server refuses other rules.
func (g *Generator) egressRule() v1alpha2.ClusterNetworkPolicyEgressRule {
	rule := v1alpha2.ClusterNetworkPolicyEgressRule{Action: g.action(), Protocols: several(g, 40, 2, g.protocol)}
	draw := g.egressPeer
	if hasNamed(rule.Protocols) {
		draw = g.podPeer
	}
	rule.To = several(g, 0, 2, draw)
	return rule
}

func hasNamed(protocols []v1alpha2.ClusterNetworkPolicyProtocol) bool {
	for _, p := range protocols {
		if p.DestinationNamedPort != "" {
			return true
		}
	}
	return false
}

func (g *Generator) podPeer() v1alpha2.ClusterNetworkPolicyEgressPeer {
	peer := g.ingressPeer()
	return v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: peer.Namespaces, Pods: peer.Pods}
}

func (g *Generator) egressPeer() v1alpha2.ClusterNetworkPolicyEgressPeer {
	switch n := g.IntN(100); {
	case n < 50:
		return g.podPeer()
	case n < 65:
		return v1alpha2.ClusterNetworkPolicyEgressPeer{Nodes: g.selector()}
	default:
		return v1alpha2.ClusterNetworkPolicyEgressPeer{Networks: several(g, 0, 1, g.network)}
	}
}

func (g *Generator) network() v1alpha2.CIDR {
	return v1alpha2.CIDR(g.prefixOf(g.anyAddress(), 0).Masked().String())
}

func (g *Generator) protocol() v1alpha2.ClusterNetworkPolicyProtocol {
	switch port := g.clusterPort(); g.IntN(4) {
	case 0:
		return v1alpha2.ClusterNetworkPolicyProtocol{TCP: &v1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}}
	case 1:
		return v1alpha2.ClusterNetworkPolicyProtocol{UDP: &v1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}}
	case 2:
		return v1alpha2.ClusterNetworkPolicyProtocol{SCTP: &v1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}}
	default:
		return v1alpha2.ClusterNetworkPolicyProtocol{DestinationNamedPort: g.portName()}
	}
}

func (g *Generator) clusterPort() *v1alpha2.Port {
	if number := g.port(); g.chance(50) {
		return &v1alpha2.Port{Range: &v1alpha2.PortRange{Start: number, End: number + 1 + g.Int32N(2)}}
	} else {
		return &v1alpha2.Port{Number: number}
	}
}
