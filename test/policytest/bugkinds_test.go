// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// never is a port that no probe tries.
const never = 9

func eachPolicy(rewrite func(*networkingv1.NetworkPolicy)) func(*Cluster) {
	return func(c *Cluster) {
		for i := range c.Policies {
			rewrite(&c.Policies[i])
		}
	}
}

// firstOfName keeps the first object of each name, whatever its namespace.
func firstOfName[T any](list []T, meta func(*T) *metav1.ObjectMeta) []T {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(object T) bool {
		name := meta(&object).Name
		again := seen[name]
		seen[name] = true
		return again
	})
}

// eachSelector rewrites the selectors of the NetworkPolicies.
func eachSelector(rewrite func(*metav1.LabelSelector)) func(*Cluster) {
	return func(c *Cluster) {
		for i := range c.Policies {
			rewrite(&c.Policies[i].Spec.PodSelector)
		}
		eachPeer(func(_ string, p peer) []peer {
			for _, s := range []*metav1.LabelSelector{p.NamespaceSelector, p.PodSelector} {
				if s != nil {
					rewrite(s)
				}
			}
			return []peer{p}
		})(c)
	}
}

func notInRequiresKey(s *metav1.LabelSelector) {
	for _, e := range s.MatchExpressions {
		if e.Operator == metav1.LabelSelectorOpNotIn {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: e.Key, Operator: metav1.LabelSelectorOpExists})
		}
	}
}

func doesNotExistIsExists(s *metav1.LabelSelector) {
	for i := range s.MatchExpressions {
		if s.MatchExpressions[i].Operator == metav1.LabelSelectorOpDoesNotExist {
			s.MatchExpressions[i].Operator = metav1.LabelSelectorOpExists
		}
	}
}

// exceptForAll takes each except out of all blocks of its policy.
func exceptForAll(c *Cluster) {
	excepts := map[string][]string{}
	collect := func(namespace string, p peer) []peer {
		if p.IPBlock != nil {
			excepts[namespace] = append(excepts[namespace], p.IPBlock.Except...)
		}
		return []peer{p}
	}
	eachPeer(collect)(c)
	eachPeer(func(namespace string, p peer) []peer {
		if p.IPBlock != nil {
			p.IPBlock.Except = excepts[namespace]
		}
		return []peer{p}
	})(c)
}

// namedOfSource replaces the named ports of egress rules by those of the pod that sends.
func namedOfSource(c *Cluster, p *Probe) {
	source := c.podAt(p.From)
	if source == nil {
		return
	}
	for i := range c.Policies {
		for _, rule := range c.Policies[i].Spec.Egress {
			for j := range rule.Ports {
				if port := &rule.Ports[j]; port.Port != nil && port.Port.Type == intstr.String {
					number := intstr.FromInt32(numberOf(source, port.Port.StrVal, protocolOf(port.Protocol)))
					port.Port = &number
				}
			}
		}
	}
}

func numberOf(pod *corev1.Pod, name string, protocol corev1.Protocol) int32 {
	for _, port := range portsOf(pod) {
		if port.Name == name && containerProtocol(port) == protocol {
			return port.ContainerPort
		}
	}
	return never
}

func anyProtocol(pod *corev1.Pod) {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
				port.Protocol = protocol
				pod.Spec.Containers[i].Ports = append(pod.Spec.Containers[i].Ports, port)
			}
		}
	}
}

// as is an engine that takes a protocol for TCP, in rules, pods and packets.
func as(protocol corev1.Protocol) func() Engine {
	tcp := corev1.ProtocolTCP
	rules := eachPort(func(p *port) {
		if protocolOf(p.Protocol) == protocol {
			p.Protocol = &tcp
		}
	})
	packets := func(_ *Cluster, p *Probe) {
		if p.Protocol == protocol {
			p.Protocol = tcp
		}
	}
	return func() Engine { return &misread{cluster: rules, probe: packets} }
}

func tcpWithoutPort(p *port) {
	if p.Port == nil {
		p.Protocol = nil
	}
}

func anyNodeIsOwn(c *Cluster, p *Probe) {
	if node := c.nodeAt(p.From); node != nil {
		eachPod(func(pod *corev1.Pod) { pod.Spec.NodeName = node.Name })(c)
	}
}

func icmpByPorts(c *Cluster, p *Probe) {
	if p.Protocol == ICMP {
		eachRule(c, func(_ string, _ *[]peer, ports *[]port) bool { *ports = nil; return true })
	}
}

// selfless applies NetworkPolicies to the traffic of a pod to itself.
type selfless struct{ misread }

func (s *selfless) Allows(p Probe) (allowed bool, policy string, err error) {
	pod := s.loaded.podAt(p.From)
	if pod == nil || p.From != p.To {
		return s.misread.Allows(p)
	}
	out, in := s.loaded.tiers(pod, selfish{outgoing{s.loaded, p}}), s.loaded.tiers(pod, selfish{incoming{s.loaded, p}})
	return out.Allowed && in.Allowed, "", nil
}

type selfish struct{ direction }

func (selfish) toItself() bool { return false }

// sparing applies no policy to the traffic of a pod to itself.
type sparing struct{ misread }

func (s *sparing) Allows(p Probe) (allowed bool, policy string, err error) {
	if p.From == p.To {
		return true, "", nil
	}
	return s.misread.Allows(p)
}

func eachClusterPolicy(rewrite func(*v1alpha2.ClusterNetworkPolicy)) func(*Cluster) {
	return func(c *Cluster) {
		for i := range c.ClusterPolicies {
			rewrite(&c.ClusterPolicies[i])
		}
	}
}

func eachAction(from, to v1alpha2.ClusterNetworkPolicyRuleAction) func(*Cluster) {
	return eachClusterPolicy(func(cnp *v1alpha2.ClusterNetworkPolicy) {
		for i := range cnp.Spec.Ingress {
			if r := &cnp.Spec.Ingress[i]; r.Action == from {
				r.Action = to
			}
		}
		for i := range cnp.Spec.Egress {
			if r := &cnp.Spec.Egress[i]; r.Action == from {
				r.Action = to
			}
		}
	})
}

func dropTier(tier v1alpha2.Tier) func(*Cluster) {
	return func(c *Cluster) {
		c.ClusterPolicies = slices.DeleteFunc(c.ClusterPolicies, func(cnp v1alpha2.ClusterNetworkPolicy) bool { return cnp.Spec.Tier == tier })
	}
}

// eachClusterRule rewrites the egress rules of the cluster policies, and drops those without
// peers.
func eachClusterRule(rewrite func(*v1alpha2.ClusterNetworkPolicyEgressRule)) func(*Cluster) {
	return eachClusterPolicy(func(cnp *v1alpha2.ClusterNetworkPolicy) {
		for i := range cnp.Spec.Egress {
			rewrite(&cnp.Spec.Egress[i])
		}
		cnp.Spec.Egress = slices.DeleteFunc(cnp.Spec.Egress, func(r v1alpha2.ClusterNetworkPolicyEgressRule) bool { return len(r.To) == 0 })
	})
}

func withoutPeers(unwanted func(v1alpha2.ClusterNetworkPolicyEgressPeer) bool) func(*v1alpha2.ClusterNetworkPolicyEgressRule) {
	return func(r *v1alpha2.ClusterNetworkPolicyEgressRule) { r.To = slices.DeleteFunc(r.To, unwanted) }
}

func noNodes(r *v1alpha2.ClusterNetworkPolicyEgressRule) {
	withoutPeers(func(p v1alpha2.ClusterNetworkPolicyEgressPeer) bool { return p.Nodes != nil })(r)
}

func noUnknown(r *v1alpha2.ClusterNetworkPolicyEgressRule) {
	withoutPeers(func(p v1alpha2.ClusterNetworkPolicyEgressPeer) bool {
		return clusterRule{peers: []v1alpha2.ClusterNetworkPolicyEgressPeer{p}}.unknown()
	})(r)
}

func noNetworksOfPods(c *Cluster, p *Probe) {
	if c.podAt(p.To) != nil {
		eachClusterRule(withoutPeers(func(p v1alpha2.ClusterNetworkPolicyEgressPeer) bool { return p.Networks != nil }))(c)
	}
}

func namedIsTCP(c *Cluster, p *Probe) {
	if p.Protocol == corev1.ProtocolTCP {
		return
	}
	eachClusterRule(func(r *v1alpha2.ClusterNetworkPolicyEgressRule) {
		for i := range r.Protocols {
			if r.Protocols[i].DestinationNamedPort != "" {
				r.Protocols[i].DestinationNamedPort = "none"
			}
		}
	})(c)
}

func shortRanges(r *v1alpha2.ClusterNetworkPolicyEgressRule) {
	for _, p := range r.Protocols {
		for _, port := range []*v1alpha2.Port{portOfTCP(p), portOfUDP(p)} {
			if port != nil && port.Range != nil {
				port.Range.End--
			}
		}
	}
}

func portOfTCP(p v1alpha2.ClusterNetworkPolicyProtocol) *v1alpha2.Port {
	if p.TCP == nil {
		return nil
	}
	return p.TCP.DestinationPort
}

func portOfUDP(p v1alpha2.ClusterNetworkPolicyProtocol) *v1alpha2.Port {
	if p.UDP == nil {
		return nil
	}
	return p.UDP.DestinationPort
}
