// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

type (
	peer = api.NetworkPolicyPeer
	port = api.NetworkPolicyPort
)

// plantedBugs are mistakes of the kind that engines make. Compare must find each: this proves that
// the generator draws what tells a wrong engine from a right one.
var plantedBugs = map[string]func() Engine{
	"a rule with endPort opens all ports of its protocol": bug(eachPort(func(p *port) {
		if p.EndPort != nil {
			p.Port, p.EndPort = nil, nil
		}
	})),
	"endPort is excluded": bug(eachPort(func(p *port) {
		if p.EndPort != nil && *p.EndPort > p.Port.IntVal {
			*p.EndPort--
		}
	})),
	"except is ignored": bug(eachPeer(func(_ string, p peer) []peer {
		if p.IPBlock != nil {
			p.IPBlock.Except = nil
		}
		return []peer{p}
	})),
	"only the first except counts": bug(eachPeer(func(_ string, p peer) []peer {
		if p.IPBlock != nil && len(p.IPBlock.Except) > 1 {
			p.IPBlock.Except = p.IPBlock.Except[:1]
		}
		return []peer{p}
	})),
	"an except holds against other rules":  bug(exceptForAll),
	"NotIn requires the key":               bug(eachSelector(notInRequiresKey)),
	"DoesNotExist is Exists":               bug(eachSelector(doesNotExistIsExists)),
	"egress: a named port is the source's": asked(namedOfSource),
	"a named port has any protocol":        bug(eachPod(anyProtocol)),
	"ports of init containers count": bug(eachPod(func(pod *api.Pod) {
		pod.Spec.Containers = append(pod.Spec.Containers, pod.Spec.InitContainers...)
	})),
	"ports of sidecars do not count":   bug(eachPod(func(pod *api.Pod) { pod.Spec.InitContainers = nil })),
	"UDP is TCP":                       as(api.ProtocolUDP),
	"SCTP is TCP":                      as(api.ProtocolSCTP),
	"a protocol without a port is TCP": bug(eachPort(tcpWithoutPort)),
	"finished pods are peers":          bug(eachPod(func(pod *api.Pod) { pod.Status.Phase = api.PodRunning })),
	"pending pods are no peers": bug(eachPod(func(pod *api.Pod) {
		if pod.Status.Phase == api.PodPending {
			pod.Status.Phase = api.PodFailed
		}
	})),
	"terminating pods are no peers": bug(eachPod(func(pod *api.Pod) {
		if pod.DeletionTimestamp != nil {
			pod.Status.Phase = api.PodFailed
		}
	})),
	"pods with hostNetwork are isolated and peers": bug(eachPod(func(pod *api.Pod) { pod.Spec.HostNetwork = false })),
	"no policyTypes is Ingress": bug(eachPolicy(func(np *api.NetworkPolicy) {
		if len(np.Spec.PolicyTypes) == 0 {
			np.Spec.PolicyTypes = []api.PolicyType{api.PolicyTypeIngress}
		}
	})),
	"no policyTypes is both": bug(eachPolicy(func(np *api.NetworkPolicy) {
		if len(np.Spec.PolicyTypes) == 0 {
			np.Spec.PolicyTypes = []api.PolicyType{api.PolicyTypeIngress, api.PolicyTypeEgress}
		}
	})),
	"rules decide the direction, not policyTypes": bug(eachPolicy(func(np *api.NetworkPolicy) { np.Spec.PolicyTypes = nil })),
	"namespaceSelector and podSelector are OR": bug(eachPeer(func(_ string, p peer) []peer {
		if p.NamespaceSelector == nil || p.PodSelector == nil {
			return []peer{p}
		}
		return []peer{{NamespaceSelector: p.NamespaceSelector}, {NamespaceSelector: &api.LabelSelector{}, PodSelector: p.PodSelector}}
	})),
	"podSelector is every namespace": bug(eachPeer(func(_ string, p peer) []peer {
		if p.PodSelector != nil && p.NamespaceSelector == nil {
			p.NamespaceSelector = &api.LabelSelector{}
		}
		return []peer{p}
	})),
	"an empty namespaceSelector is the world": bug(eachPeer(func(_ string, p peer) []peer {
		if p.NamespaceSelector == nil || p.PodSelector != nil || len(p.NamespaceSelector.MatchLabels)+len(p.NamespaceSelector.MatchExpressions) > 0 {
			return []peer{p}
		}
		return []peer{block("0.0.0.0/0"), block("::/0")}
	})),
	"an empty from is nobody": bug(func(c *Cluster) {
		eachRule(c, func(_ string, peers *[]peer, _ *[]port) bool { return len(*peers) > 0 })
	}),
	"an empty from is every pod": bug(func(c *Cluster) {
		eachRule(c, func(_ string, peers *[]peer, _ *[]port) bool {
			if len(*peers) == 0 {
				*peers = []peer{{NamespaceSelector: &api.LabelSelector{}}}
			}
			return true
		})
	}),
	"an IPv6 block is ignored": bug(eachPeer(func(_ string, p peer) []peer {
		if p.IPBlock != nil && strings.Contains(p.IPBlock.CIDR, ":") {
			return nil
		}
		return []peer{p}
	})),
	"0.0.0.0/0 is both families": bug(eachPeer(func(_ string, p peer) []peer {
		if p.IPBlock != nil && p.IPBlock.CIDR == "0.0.0.0/0" {
			return []peer{p, block("::/0")}
		}
		return []peer{p}
	})),
	"a block with host bits is one address": bug(eachPeer(func(_ string, p peer) []peer {
		if p.IPBlock != nil {
			if cidr := netip.MustParsePrefix(p.IPBlock.CIDR); cidr != cidr.Masked() {
				return []peer{block(netip.PrefixFrom(cidr.Addr(), cidr.Addr().BitLen()).String())}
			}
		}
		return []peer{p}
	})),
	"every node is the pod's own":  asked(anyNodeIsOwn),
	"policies of one name are one": bug(func(c *Cluster) { c.Policies = firstOfName(c.Policies, policyMeta) }),
	"pods of one name are one":     bug(func(c *Cluster) { c.Pods = firstOfName(c.Pods, podMeta) }),
	"the pod's own node is the world": bug(eachPod(func(pod *api.Pod) {
		if !pod.Spec.HostNetwork {
			pod.Spec.NodeName = ""
		}
	})),
	"rules with ports let ICMP through":   asked(icmpByPorts),
	"a pod does not reach itself":         func() Engine { return &selfless{} },
	"cluster policies spare a pod itself": func() Engine { return &sparing{} },
	"equal labels of a namespace do for a pod": bug(func(c *Cluster) {
		for i, pod := range c.Pods {
			for key, value := range c.labelsOf(pod.Namespace) {
				if _, ok := pod.Labels[key]; !ok {
					if pod.Labels == nil {
						c.Pods[i].Labels = map[string]string{}
					}
					c.Pods[i].Labels[key] = value
				}
			}
		}
	}),

	"namespaces keep their first labels":       missing(oldNamespaceLabels),
	"pods keep their first labels":             missing(oldPodLabels),
	"a pod that was removed stays":             missing(removedPods),
	"a node keeps its first address":           missing(oldNodes),
	"a policy that was removed stays":          missing(oldPolicies),
	"a policy keeps its first podSelector":     missing(oldPodSelectors),
	"a policy keeps its first egress":          missing(oldEgress),
	"a finished pod keeps its address":         missing(oldPhases),
	"a pod of a known name keeps its ports":    missing(oldPorts),
	"a pod of a known name keeps its address":  missing(oldAddresses),
	"a pod that got its address later is none": missing(noAddressYet),
	"cluster policies keep their priorities":   missing(oldPriorities),

	"a higher priority wins": bug(eachClusterPolicy(func(cnp *api.ClusterNetworkPolicy) { cnp.Spec.Priority = 1000 - cnp.Spec.Priority })),
	"Pass accepts":           bug(eachAction(api.ClusterNetworkPolicyRuleActionPass, api.ClusterNetworkPolicyRuleActionAccept)),
	"Pass denies":            bug(eachAction(api.ClusterNetworkPolicyRuleActionPass, api.ClusterNetworkPolicyRuleActionDeny)),
	"Baseline is Admin": bug(eachClusterPolicy(func(cnp *api.ClusterNetworkPolicy) {
		if cnp.Spec.Tier == api.BaselineTier {
			cnp.Spec.Tier, cnp.Spec.Priority = api.AdminTier, cnp.Spec.Priority+1001
		}
	})),
	"Baseline is ignored":   bug(dropTier(api.BaselineTier)),
	"networks are not pods": asked(noNetworksOfPods),
	"a peer of nodes has only the API's addresses": bug(func(c *Cluster) {
		for i := range c.Nodes {
			c.Nodes[i].Spec.PodCIDRs = nil
		}
	}),
	"a peer of nodes is nobody":                 bug(eachClusterRule(noNodes)),
	"a cluster policy's named port is TCP":      asked(namedIsTCP),
	"a cluster policy's range excludes its end": bug(eachClusterRule(shortRanges)),
	"an unknown peer is nobody":                 bug(eachClusterRule(noUnknown)),
	"a field of a later version is ignored":     bug(eachClusterPolicy(func(cnp *api.ClusterNetworkPolicy) { cnp.Annotations = nil })),
	"a field of a later version closes the whole policy": bug(eachClusterPolicy(func(cnp *api.ClusterNetworkPolicy) {
		if cnp.Annotations != nil {
			denyAll(&cnp.Spec)
		}
	})),
}

func bug(rewrite func(*Cluster)) func() Engine {
	return func() Engine { return &misread{cluster: rewrite} }
}

// asked is an engine that misreads each probe.
func asked(rewrite func(*Cluster, *Probe)) func() Engine {
	return func() Engine { return &misread{probe: rewrite} }
}

func missing(misses func(last, next *Cluster)) func() Engine {
	return func() Engine { return &late{misses: misses} }
}

func block(cidr string) peer { return peer{IPBlock: &api.IPBlock{CIDR: cidr}} }
