// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// never is a port that no probe tries.
const never = 9

func eachPolicy(rewrite func(*api.NetworkPolicy)) func(*Cluster) {
	return func(c *Cluster) {
		for i := range c.Policies {
			rewrite(&c.Policies[i])
		}
	}
}

// firstOfName keeps the first object of each name, whatever its namespace.
func firstOfName[T any](list []T, meta func(*T) *api.ObjectMeta) []T {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(object T) bool {
		name := meta(&object).Name
		again := seen[name]
		seen[name] = true
		return again
	})
}

// eachSelector rewrites the selectors of the NetworkPolicies.
func eachSelector(rewrite func(*api.LabelSelector)) func(*Cluster) {
	return func(c *Cluster) {
		for i := range c.Policies {
			rewrite(&c.Policies[i].Spec.PodSelector)
		}
		eachPeer(func(_ string, p peer) []peer {
			for _, s := range []*api.LabelSelector{p.NamespaceSelector, p.PodSelector} {
				if s != nil {
					rewrite(s)
				}
			}
			return []peer{p}
		})(c)
	}
}

func notInRequiresKey(s *api.LabelSelector) {
	for _, e := range s.MatchExpressions {
		if e.Operator == api.LabelSelectorOpNotIn {
			s.MatchExpressions = append(s.MatchExpressions, api.LabelSelectorRequirement{Key: e.Key, Operator: api.LabelSelectorOpExists})
		}
	}
}

func doesNotExistIsExists(s *api.LabelSelector) {
	for i := range s.MatchExpressions {
		if s.MatchExpressions[i].Operator == api.LabelSelectorOpDoesNotExist {
			s.MatchExpressions[i].Operator = api.LabelSelectorOpExists
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
				if port := &rule.Ports[j]; port.Port != nil && port.Port.StrVal != "" {
					number := api.IntOrString{IntVal: numberOf(source, port.Port.StrVal, protocolOf(port.Protocol))}
					port.Port = &number
				}
			}
		}
	}
}

func numberOf(pod *api.Pod, name string, protocol api.Protocol) int32 {
	for _, port := range portsOf(pod) {
		if port.Name == name && containerProtocol(port) == protocol {
			return port.ContainerPort
		}
	}
	return never
}

func anyProtocol(pod *api.Pod) {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			for _, protocol := range []api.Protocol{api.ProtocolTCP, api.ProtocolUDP, api.ProtocolSCTP} {
				port.Protocol = protocol
				pod.Spec.Containers[i].Ports = append(pod.Spec.Containers[i].Ports, port)
			}
		}
	}
}

// as is an engine that takes a protocol for TCP, in rules, pods and packets.
func as(protocol api.Protocol) func() Engine {
	tcp := api.ProtocolTCP
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
		eachPod(func(pod *api.Pod) { pod.Spec.NodeName = node.Name })(c)
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

func eachClusterPolicy(rewrite func(*api.ClusterNetworkPolicy)) func(*Cluster) {
	return func(c *Cluster) {
		for i := range c.ClusterPolicies {
			rewrite(&c.ClusterPolicies[i])
		}
	}
}

func eachAction(from, to api.ClusterNetworkPolicyRuleAction) func(*Cluster) {
	return eachClusterPolicy(func(cnp *api.ClusterNetworkPolicy) {
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

func dropTier(tier api.Tier) func(*Cluster) {
	return func(c *Cluster) {
		c.ClusterPolicies = slices.DeleteFunc(c.ClusterPolicies, func(cnp api.ClusterNetworkPolicy) bool { return cnp.Spec.Tier == tier })
	}
}

// eachClusterRule rewrites the egress rules of the cluster policies, and drops those without
// peers.
func eachClusterRule(rewrite func(*api.ClusterNetworkPolicyEgressRule)) func(*Cluster) {
	return eachClusterPolicy(func(cnp *api.ClusterNetworkPolicy) {
		for i := range cnp.Spec.Egress {
			rewrite(&cnp.Spec.Egress[i])
		}
		cnp.Spec.Egress = slices.DeleteFunc(cnp.Spec.Egress, func(r api.ClusterNetworkPolicyEgressRule) bool { return len(r.To) == 0 })
	})
}

func withoutPeers(unwanted func(api.ClusterNetworkPolicyEgressPeer) bool) func(*api.ClusterNetworkPolicyEgressRule) {
	return func(r *api.ClusterNetworkPolicyEgressRule) { r.To = slices.DeleteFunc(r.To, unwanted) }
}

func noNodes(r *api.ClusterNetworkPolicyEgressRule) {
	withoutPeers(func(p api.ClusterNetworkPolicyEgressPeer) bool { return p.Nodes != nil })(r)
}

func noUnknown(r *api.ClusterNetworkPolicyEgressRule) {
	withoutPeers(func(p api.ClusterNetworkPolicyEgressPeer) bool {
		return clusterRule{peers: []api.ClusterNetworkPolicyEgressPeer{p}}.unknown()
	})(r)
}

func noNetworksOfPods(c *Cluster, p *Probe) {
	if c.podAt(p.To) != nil {
		eachClusterRule(withoutPeers(func(p api.ClusterNetworkPolicyEgressPeer) bool { return p.Networks != nil }))(c)
	}
}

func namedIsTCP(c *Cluster, p *Probe) {
	if p.Protocol == api.ProtocolTCP {
		return
	}
	eachClusterRule(func(r *api.ClusterNetworkPolicyEgressRule) {
		for i := range r.Protocols {
			if r.Protocols[i].DestinationNamedPort != "" {
				r.Protocols[i].DestinationNamedPort = "none"
			}
		}
	})(c)
}

func shortRanges(r *api.ClusterNetworkPolicyEgressRule) {
	for _, p := range r.Protocols {
		for _, port := range []*api.Port{portOfTCP(p), portOfUDP(p)} {
			if port != nil && port.Range != nil {
				port.Range.End--
			}
		}
	}
}

func portOfTCP(p api.ClusterNetworkPolicyProtocol) *api.Port {
	if p.TCP == nil {
		return nil
	}
	return p.TCP.DestinationPort
}

func portOfUDP(p api.ClusterNetworkPolicyProtocol) *api.Port {
	if p.UDP == nil {
		return nil
	}
	return p.UDP.DestinationPort
}
