// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// valid tells whether the API server would store the states of a case. What it refuses has no
// meaning, so no engine may be blamed for it.
func valid(c Case) bool {
	return len(c.States) > 0 && all(c.States, Cluster.valid)
}

func all[T any](list []T, ok func(T) bool) bool {
	return !slices.ContainsFunc(list, func(element T) bool { return !ok(element) })
}

func (c Cluster) valid() bool {
	return c.oneOwnerEach() && all(c.Pods, c.validPod) && all(c.Policies, c.validPolicy) && all(c.ClusterPolicies, c.validClusterPolicy)
}

// oneOwnerEach tells whether no two pods on the pod network have the same address.
func (c Cluster) oneOwnerEach() bool {
	seen := map[string]bool{}
	for i := range c.Pods {
		if !onPodNetwork(&c.Pods[i]) {
			continue
		}
		for _, ip := range c.Pods[i].Status.PodIPs {
			if seen[ip.IP] {
				return false
			}
			seen[ip.IP] = true
		}
	}
	return true
}

func (c Cluster) hasNamespace(name string) bool {
	return slices.ContainsFunc(c.Namespaces, func(ns api.Namespace) bool {
		return ns.Name == name && ns.Labels[api.LabelMetadataName] == name
	})
}

func (c Cluster) validPod(pod api.Pod) bool {
	node := slices.IndexFunc(c.Nodes, func(n api.Node) bool { return n.Name == pod.Spec.NodeName })
	return c.hasNamespace(pod.Namespace) && node >= 0 && len(pod.Spec.Containers) > 0 &&
		(!pod.Spec.HostNetwork || slices.Equal(pod.Status.PodIPs, hostIPs(c.Nodes[node])))
}

func (c Cluster) validPolicy(np api.NetworkPolicy) bool {
	return c.hasNamespace(np.Namespace) && validSelector(&np.Spec.PodSelector) &&
		all(np.Spec.Ingress, func(r api.NetworkPolicyIngressRule) bool {
			return all(r.From, validPeer) && all(r.Ports, validPort)
		}) &&
		all(np.Spec.Egress, func(r api.NetworkPolicyEgressRule) bool {
			return all(r.To, validPeer) && all(r.Ports, validPort)
		})
}

func validSelector(s *api.LabelSelector) bool {
	return s == nil || all(s.MatchExpressions, func(e api.LabelSelectorRequirement) bool {
		wants := e.Operator == api.LabelSelectorOpIn || e.Operator == api.LabelSelectorOpNotIn
		return wants == (len(e.Values) > 0)
	})
}

func validPeer(p api.NetworkPolicyPeer) bool {
	selects := p.PodSelector != nil || p.NamespaceSelector != nil
	return selects != (p.IPBlock != nil) && validSelector(p.PodSelector) && validSelector(p.NamespaceSelector) &&
		(p.IPBlock == nil || validBlock(p.IPBlock))
}

// validBlock: an except is smaller than the block, and inside.
func validBlock(b *api.IPBlock) bool {
	block, err := netip.ParsePrefix(b.CIDR)
	return err == nil && all(b.Except, func(text string) bool {
		except, err := netip.ParsePrefix(text)
		return err == nil && block.Contains(except.Addr()) && except.Bits() > block.Bits()
	})
}

func validPort(p api.NetworkPolicyPort) bool {
	return p.EndPort == nil || (p.Port != nil && p.Port.StrVal == "" && p.Port.IntVal <= *p.EndPort)
}

func (c Cluster) validClusterPolicy(cnp api.ClusterNetworkPolicy) bool {
	return c.onlyOneAt(cnp.Spec.Tier, cnp.Spec.Priority) && validSubject(cnp.Spec.Subject) &&
		all(incoming{}.rules(&cnp), validClusterRule) && all(outgoing{}.rules(&cnp), validClusterRule)
}

func (c Cluster) onlyOneAt(tier api.Tier, priority int32) bool {
	n := 0
	for _, cnp := range c.ClusterPolicies {
		if cnp.Spec.Tier == tier && cnp.Spec.Priority == priority {
			n++
		}
	}
	return n == 1
}

func validSubject(s api.ClusterNetworkPolicySubject) bool {
	return (s.Namespaces == nil) != (s.Pods == nil) && validSelector(s.Namespaces) && validNamespacedPod(s.Pods)
}

func validNamespacedPod(p *api.NamespacedPod) bool {
	return p == nil || (validSelector(&p.NamespaceSelector) && validSelector(&p.PodSelector))
}

func validClusterRule(r clusterRule) bool {
	return len(r.peers) > 0 && all(r.peers, validClusterPeer) && all(r.protocols, validProtocol) &&
		(!hasNamed(r.protocols) || all(r.peers, func(p api.ClusterNetworkPolicyEgressPeer) bool { return p.Nodes == nil && p.Networks == nil }))
}

// validClusterPeer accepts a peer without fields: it is one of a kind that a later version added.
func validClusterPeer(p api.ClusterNetworkPolicyEgressPeer) bool {
	fields := 0
	for _, set := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, p.Networks != nil} {
		if set {
			fields++
		}
	}
	return fields <= 1 && (p.Networks == nil || len(p.Networks) > 0) &&
		validSelector(p.Namespaces) && validSelector(p.Nodes) && validNamespacedPod(p.Pods)
}

func validProtocol(p api.ClusterNetworkPolicyProtocol) bool {
	switch {
	case p.TCP != nil:
		return validClusterPort(p.TCP.DestinationPort)
	case p.UDP != nil:
		return validClusterPort(p.UDP.DestinationPort)
	case p.SCTP != nil:
		return validClusterPort(p.SCTP.DestinationPort)
	default:
		return p.DestinationNamedPort != ""
	}
}

func validClusterPort(p *api.Port) bool {
	return p != nil && (p.Number > 0) != (p.Range != nil)
}
