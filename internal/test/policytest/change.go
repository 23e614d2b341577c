// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// Change draws what happens to the cluster next: one to three events of pods, labels and policies.
func (g *Generator) Change() {
	events := []func(){
		g.relabelPod, g.relabelPod, g.relabelNamespace, g.relabelNamespace, g.addPod, g.removePod, g.finishPod, g.finishPod, g.replacePod, g.startPod, g.startPod,
		g.addPolicy, g.editPolicy, g.editPolicy, g.removePolicy, g.relabelNode, g.renumberNode,
		g.editClusterPolicy, g.reorderClusterPolicies, g.removeClusterPolicy, g.replaceNamespace,
	}
	if len(g.ClusterPolicies) < g.shape.ClusterPolicies {
		events = append(events, g.addClusterPolicy)
	}
	for range 1 + g.IntN(3) {
		pick(g, events...)()
	}
}

// some returns a random element, or nil if there is none.
func some[T any](g *Generator, list []T) *T {
	if len(list) == 0 {
		return nil
	}
	return &list[g.IntN(len(list))]
}

// without returns the list without one random element.
func without[T any](g *Generator, list []T) []T {
	if len(list) == 0 {
		return list
	}
	i := g.IntN(len(list))
	return slices.Delete(list, i, i+1)
}

func (g *Generator) relabelPod() {
	if pod := some(g, g.Pods); pod != nil {
		pod.Labels = g.labels()
	}
}

func (g *Generator) relabelNamespace() {
	ns := some(g, g.Namespaces)
	ns.Labels = g.labels()
	ns.Labels[api.LabelMetadataName] = ns.Name
}

func (g *Generator) relabelNode() { some(g, g.Nodes).Labels = g.labels() }

// renumberNode gives a node, and its pods with hostNetwork, other addresses.
func (g *Generator) renumberNode() {
	node, n := some(g, g.Nodes), 10+g.IntN(200)
	if g.nodeAt(netip.AddrFrom4([4]byte{192, 168, 0, byte(n)})) != nil {
		return
	}
	node.Status.Addresses = nodeAddresses(node.Name, n)
	for i := range g.Pods {
		if pod := &g.Pods[i]; pod.Spec.HostNetwork && pod.Spec.NodeName == node.Name {
			pod.Status.PodIPs = hostIPs(*node)
		}
	}
}

func (g *Generator) removePod() { g.Pods = without(g, g.Pods) }

// finishPod ends a pod, which keeps its addresses in its status.
func (g *Generator) finishPod() {
	if pod := some(g, g.Pods); pod != nil {
		pod.Status.Phase = pick(g, api.PodSucceeded, api.PodFailed)
	}
}

// startPod gives a pod its addresses, if one has none yet.
func (g *Generator) startPod() {
	for i := range g.Pods {
		if pod := &g.Pods[i]; len(pod.Status.PodIPs) == 0 {
			pod.Status.PodIPs = g.podIPs(finished(pod))
			return
		}
	}
}

// replacePod removes a pod and gives its name to another, as a StatefulSet does.
func (g *Generator) replacePod() {
	i := g.IntN(len(g.Pods) + 1)
	if i == len(g.Pods) {
		return
	}
	name, namespace := g.Pods[i].Name, g.Pods[i].Namespace
	g.Pods = slices.Delete(g.Pods, i, i+1)
	g.addPod()
	last := &g.Pods[len(g.Pods)-1]
	last.Name, last.Namespace = name, namespace
}

// replaceNamespace removes a namespace with all in it, and makes another.
func (g *Generator) replaceNamespace() {
	i := g.IntN(len(g.Namespaces))
	name := g.Namespaces[i].Name
	g.Namespaces = slices.Delete(g.Namespaces, i, i+1)
	g.Pods = slices.DeleteFunc(g.Pods, func(pod api.Pod) bool { return pod.Namespace == name })
	g.Policies = slices.DeleteFunc(g.Policies, func(np api.NetworkPolicy) bool { return np.Namespace == name })
	g.addNamespace()
	g.addPod()
}

func (g *Generator) removePolicy() { g.Policies = without(g, g.Policies) }

func (g *Generator) editPolicy() {
	np := some(g, g.Policies)
	if np == nil {
		return
	}
	switch fresh := g.policySpec(); g.IntN(4) {
	case 0:
		np.Spec.PodSelector = fresh.PodSelector
	case 1:
		np.Spec.Ingress = fresh.Ingress
	case 2:
		np.Spec.Egress = fresh.Egress
	default:
		np.Spec = fresh
	}
}

func (g *Generator) removeClusterPolicy() { g.ClusterPolicies = without(g, g.ClusterPolicies) }

// editClusterPolicy replaces a part of a policy.
func (g *Generator) editClusterPolicy() {
	cnp := some(g, g.ClusterPolicies)
	if cnp == nil {
		return
	}
	switch fresh := g.clusterSpec(); g.IntN(3) {
	case 0:
		cnp.Spec.Subject = fresh.Subject
	case 1:
		cnp.Spec.Ingress, cnp.Spec.Egress = fresh.Ingress, fresh.Egress
	default:
		cnp.Spec = fresh
	}
	g.giveLaterField(cnp)
}

// reorderClusterPolicies turns the order of all policies around.
func (g *Generator) reorderClusterPolicies() {
	for i := range g.ClusterPolicies {
		cnp := &g.ClusterPolicies[i]
		cnp.Spec.Priority = 1000 - cnp.Spec.Priority
	}
}
