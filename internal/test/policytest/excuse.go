// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// excuses are why the witness, kube-network-policies v1.1.0, may answer otherwise than the oracle. The
// quotes are of the API's documentation: NetworkPolicy's is
// https://kubernetes.io/docs/concepts/services-networking/network-policies/, and ClusterNetworkPolicy's
// https://network-policy-api.sigs.k8s.io/reference/spec/.
var excuses = []struct {
	reason string
	is     func(Cluster, Probe) bool
}{
	// "Traffic to and from the node where a Pod is running is always allowed." The witness has this outside
	// of its evaluator, as a rule of its agent for all packets of root.
	{"the pod's own node", Cluster.fromOwnNode},
	// "A Pod cannot block access to itself." The witness has no such exception.
	{"a pod and itself", Cluster.toItself},
	// The witness takes an address for that of a pod that has finished. Nobody sends from it any more, or
	// another pod does, which it knows once that pod is running.
	{"a finished pod", Cluster.ofFinished},
	// "A numerical or named port on a pod", and a sidecar is as long in its pod as the other containers. The
	// witness reads spec.containers only.
	{"a named port of a sidecar", Cluster.onSidecar},
	// "Further evaluation only happens for Pods not selected by a v1.NetworkPolicy." For the witness, one of
	// the other direction counts. The oracle takes NetworkPolicy's own word: the isolations of a pod for
	// egress and for ingress "are declared independently".
	{"Baseline beside a NetworkPolicy of the other direction", Cluster.inBaselineOnly},
	// Nodes match "the IPs present in the node.Status.Addresses field of the node". The oracle adds two.
	{"a node's address for its pods", Cluster.toGateway},
	// "If an implementation sees no fields are set then [...] it should fail closed." The witness passes over
	// such a peer.
	{"a rule that is not understood", Cluster.notUnderstood},
}

// excuse returns the reason why the witness may answer otherwise about a probe, or "".
func (c Cluster) excuse(p Probe) string {
	for _, e := range excuses {
		if e.is(c, p) {
			return e.reason
		}
	}
	return ""
}

func (c Cluster) fromOwnNode(p Probe) bool {
	pod := c.podAt(p.To)
	return pod != nil && c.isNodeOf(pod, p)
}

func (c Cluster) toItself(p Probe) bool {
	return p.From == p.To && c.anySide(p, func(pod *api.Pod, d direction) bool {
		_, decided := c.networkPolicies(pod, d)
		return decided
	})
}

func (c Cluster) ofFinished(p Probe) bool {
	return slices.ContainsFunc(c.Pods, func(pod api.Pod) bool {
		return finished(&pod) && (c.mistakesFor(&pod, p.From) || c.mistakesFor(&pod, p.To))
	})
}

// mistakesFor tells whether the witness takes the address for that of the pod. It prefers one that is running.
func (c Cluster) mistakesFor(finished *api.Pod, addr netip.Addr) bool {
	owner := c.podAt(addr)
	return !finished.Spec.HostNetwork && hasAddress(finished, addr.String()) && (owner == nil || owner.Status.Phase != api.PodRunning)
}

func (c Cluster) onSidecar(p Probe) bool {
	pod := c.podAt(p.To)
	return pod != nil && slices.ContainsFunc(portsOf(&api.Pod{Spec: api.PodSpec{InitContainers: pod.Spec.InitContainers}}),
		func(port api.ContainerPort) bool {
			return port.Name != "" && port.ContainerPort == p.Port && containerProtocol(port) == p.Protocol
		})
}

func (c Cluster) inBaselineOnly(p Probe) bool {
	return c.anySide(p, func(pod *api.Pod, d direction) bool {
		_, isolated := c.networkPolicies(pod, d)
		side, decided := c.tier(api.BaselineTier, pod, d)
		return !isolated && decided && !side.Allowed && slices.ContainsFunc(c.Policies, func(np api.NetworkPolicy) bool {
			return np.Namespace == pod.Namespace && Matches(&np.Spec.PodSelector, pod.Labels)
		})
	})
}

func (c Cluster) toGateway(p Probe) bool {
	return c.podAt(p.To) == nil && slices.ContainsFunc(c.Nodes, func(n api.Node) bool { return slices.Contains(gateways(&n), p.To) })
}

func (c Cluster) notUnderstood(p Probe) bool {
	return c.anySide(p, func(pod *api.Pod, d direction) bool {
		return slices.ContainsFunc(c.ClusterPolicies, func(cnp api.ClusterNetworkPolicy) bool {
			understood := asUnderstood(&cnp)
			return c.isSubject(understood.Spec.Subject, pod) && slices.ContainsFunc(d.rules(understood), clusterRule.unknown)
		})
	})
}

// anySide tells whether something holds for the probe seen from one of its pods.
func (c Cluster) anySide(p Probe, is func(*api.Pod, direction) bool) bool {
	from, to := c.podAt(p.From), c.podAt(p.To)
	return from != nil && is(from, outgoing{c, p}) || to != nil && is(to, incoming{c, p})
}
