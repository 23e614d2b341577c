// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// both calls f for each object that is in both lists, by namespace and name.
func both[T any](last, next []T, meta func(*T) *metav1.ObjectMeta, f func(last, next *T)) {
	for i := range last {
		for j := range next {
			was, is := meta(&last[i]), meta(&next[j])
			if was.Namespace == is.Namespace && was.Name == is.Name {
				f(&last[i], &next[j])
			}
		}
	}
}

func podMeta(p *corev1.Pod) *metav1.ObjectMeta                    { return &p.ObjectMeta }
func namespaceMeta(n *corev1.Namespace) *metav1.ObjectMeta        { return &n.ObjectMeta }
func nodeMeta(n *corev1.Node) *metav1.ObjectMeta                  { return &n.ObjectMeta }
func policyMeta(p *networkingv1.NetworkPolicy) *metav1.ObjectMeta { return &p.ObjectMeta }
func cnpMeta(p *v1alpha2.ClusterNetworkPolicy) *metav1.ObjectMeta { return &p.ObjectMeta }

func oldNamespaceLabels(last, next *Cluster) {
	both(last.Namespaces, next.Namespaces, namespaceMeta, func(was, is *corev1.Namespace) { is.Labels = was.Labels })
}

func oldPodLabels(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *corev1.Pod) { is.Labels = was.Labels })
}

func oldPhases(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *corev1.Pod) { is.Status.Phase = was.Status.Phase })
}

func oldPorts(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *corev1.Pod) {
		is.Spec.Containers, is.Spec.InitContainers = was.Spec.Containers, was.Spec.InitContainers
	})
}

func oldAddresses(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *corev1.Pod) {
		if len(was.Status.PodIPs) > 0 {
			is.Status.PodIPs = was.Status.PodIPs
		}
	})
}

func noAddressYet(last, next *Cluster) {
	both(last.Pods, next.Pods, podMeta, func(was, is *corev1.Pod) {
		if len(was.Status.PodIPs) == 0 {
			is.Status.PodIPs = nil
		}
	})
}

func oldNodes(last, next *Cluster) {
	both(last.Nodes, next.Nodes, nodeMeta, func(was, is *corev1.Node) { is.Status.Addresses = was.Status.Addresses })
}

func removedPods(last, next *Cluster) {
	kept := map[string]bool{}
	both(last.Pods, next.Pods, podMeta, func(was, _ *corev1.Pod) { kept[was.Namespace+was.Name] = true })
	for _, pod := range last.Pods {
		if !kept[pod.Namespace+pod.Name] {
			next.Pods = append(next.Pods, pod)
		}
	}
}

func oldPolicies(last, next *Cluster) {
	kept := map[string]bool{}
	both(last.Policies, next.Policies, policyMeta, func(was, _ *networkingv1.NetworkPolicy) { kept[was.Namespace+was.Name] = true })
	for _, np := range last.Policies {
		if !kept[np.Namespace+np.Name] {
			next.Policies = append(next.Policies, np)
		}
	}
}

func oldPodSelectors(last, next *Cluster) {
	both(last.Policies, next.Policies, policyMeta, func(was, is *networkingv1.NetworkPolicy) { is.Spec.PodSelector = was.Spec.PodSelector })
}

func oldEgress(last, next *Cluster) {
	both(last.Policies, next.Policies, policyMeta, func(was, is *networkingv1.NetworkPolicy) { is.Spec.Egress = was.Spec.Egress })
}

func oldPriorities(last, next *Cluster) {
	both(last.ClusterPolicies, next.ClusterPolicies, cnpMeta, func(was, is *v1alpha2.ClusterNetworkPolicy) { is.Spec.Priority = was.Spec.Priority })
}
