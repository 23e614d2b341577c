// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// both calls f for each object that is in both lists, by namespace and name.
func both[T any](last, next []T, meta func(*T) *api.ObjectMeta, f func(last, next *T)) {
	for i := range last {
		for j := range next {
			was, is := meta(&last[i]), meta(&next[j])
			if was.Namespace == is.Namespace && was.Name == is.Name {
				f(&last[i], &next[j])
			}
		}
	}
}

func podMeta(p *api.Pod) *api.ObjectMeta                  { return &p.ObjectMeta }
func namespaceMeta(n *api.Namespace) *api.ObjectMeta      { return &n.ObjectMeta }
func nodeMeta(n *api.Node) *api.ObjectMeta                { return &n.ObjectMeta }
func policyMeta(p *api.NetworkPolicy) *api.ObjectMeta     { return &p.ObjectMeta }
func cnpMeta(p *api.ClusterNetworkPolicy) *api.ObjectMeta { return &p.ObjectMeta }

func oldNamespaceLabels(last, next *Cluster) {
	both(last.Namespaces, next.Namespaces, namespaceMeta, func(was, is *api.Namespace) { is.Labels = was.Labels })
}

func oldPodLabels(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *api.Pod) { is.Labels = was.Labels })
}

func oldPhases(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *api.Pod) { is.Status.Phase = was.Status.Phase })
}

func oldPorts(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *api.Pod) {
		is.Spec.Containers, is.Spec.InitContainers = was.Spec.Containers, was.Spec.InitContainers
	})
}

func oldAddresses(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *api.Pod) {
		if len(was.Status.PodIPs) > 0 {
			is.Status.PodIPs = was.Status.PodIPs
		}
	})
}

func noAddressYet(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *api.Pod) {
		if len(was.Status.PodIPs) == 0 {
			is.Status.PodIPs = nil
		}
	})
}

func oldNodes(last, next *Cluster) {
	both(last.Nodes, next.Nodes, nodeMeta, func(was, is *api.Node) { is.Status.Addresses = was.Status.Addresses })
}

func removedPods(last, next *Cluster) {
	kept := map[string]bool{}
	both(last.Pods, next.Pods, podMeta, func(was, _ *api.Pod) { kept[was.Namespace+was.Name] = true })
	for _, pod := range last.Pods {
		if !kept[pod.Namespace+pod.Name] {
			next.Pods = append(next.Pods, pod)
		}
	}
}

func oldPolicies(last, next *Cluster) {
	kept := map[string]bool{}
	both(last.Policies, next.Policies, policyMeta, func(was, _ *api.NetworkPolicy) { kept[was.Namespace+was.Name] = true })
	for _, np := range last.Policies {
		if !kept[np.Namespace+np.Name] {
			next.Policies = append(next.Policies, np)
		}
	}
}

func oldPodSelectors(last, next *Cluster) {
	both(last.Policies, next.Policies, policyMeta, func(was, is *api.NetworkPolicy) { is.Spec.PodSelector = was.Spec.PodSelector })
}

func oldEgress(last, next *Cluster) {
	both(last.Policies, next.Policies, policyMeta, func(was, is *api.NetworkPolicy) { is.Spec.Egress = was.Spec.Egress })
}

func oldPriorities(last, next *Cluster) {
	both(last.ClusterPolicies, next.ClusterPolicies, cnpMeta, func(was, is *api.ClusterNetworkPolicy) { is.Spec.Priority = was.Spec.Priority })
}
