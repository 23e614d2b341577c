// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The cluster has 200 namespaces. The pods of a namespace are ten workloads.
const (
	spaces    = 200
	workloads = 10
)

func space(i int) string { return fmt.Sprint("ns", i%spaces) }

// populate makes the namespaces, and pods that run. n1 has a hundredth part of them as every node.
func (c *cluster) populate(pods, nodes int) error {
	for i := range spaces {
		labels := map[string]string{"team": fmt.Sprint("t", i%20)}
		if err := c.space(space(i), labels); err != nil {
			return err
		}
	}
	return inParallel(pods, func(i int) error { return c.running(i, nodes) })
}

// space makes a namespace and the ServiceAccount that pods need.
func (c *cluster) space(name string, labels map[string]string) error {
	if err := c.create("namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}); err != nil {
		return err
	}
	return c.create("serviceaccounts", name, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
}

// running makes a pod with addresses of its node, and some 2 kB. Those of n1 are not in the range that its
// ADDs use: an ADD takes longer if the API still shows a former pod with its address.
func (c *cluster) running(i, nodes int) error {
	p := pod(i, nodes)
	workload := i / spaces % workloads
	p.Labels = map[string]string{
		"app": fmt.Sprint("app", workload), "tier": fmt.Sprint("tier", workload%3), "pod-template-hash": fmt.Sprintf("%d-%d", i%spaces, workload), "version": "v1",
	}
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: int32(8000 + workload)}, {Name: "metrics", ContainerPort: 9090}}
	if err := c.create("pods", space(i), p); err != nil {
		return err
	}
	on, n := 1+i%nodes, 100+i/nodes
	if on == 1 {
		on = 250
	}
	return c.run(space(i), p.Name, fmt.Sprintf("10.244.%d.%d", on, n), fmt.Sprintf("fd00:244:0:%x::%x", on, n))
}

// run writes the status that a kubelet writes when a pod has started.
func (c *cluster) run(namespace, name string, addrs ...string) error {
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addrs[0], HostIP: "10.99.0.10"}
	for _, a := range addrs {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: a})
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodScheduled} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "web", Ready: true, Image: "registry.example.org/team/web:v1", ImageID: fmt.Sprintf("sha256:%064d", 1), ContainerID: fmt.Sprintf("containerd://%064d", 1),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	return c.patch("pods", namespace, name, map[string]any{"status": status}, "status")
}

// patch changes an object of the core group.
func (c *cluster) patch(kind, namespace, name string, change any, subresource ...string) error {
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return c.api.Patch(types.StrategicMergePatchType).NamespaceIfScoped(namespace, namespace != "").Resource(kind).Name(name).SubResource(subresource...).
		Body(text).Do(context.Background()).Error()
}

// policy makes a NetworkPolicy.
func (c *cluster) policy(p *networkingv1.NetworkPolicy) error {
	return c.networking.Post().Resource("networkpolicies").Namespace(p.Namespace).Body(p).Do(context.Background()).Error()
}

// replacePolicy changes a NetworkPolicy.
func (c *cluster) replacePolicy(p *networkingv1.NetworkPolicy) error {
	return c.networking.Put().Resource("networkpolicies").Namespace(p.Namespace).Name(p.Name).Body(p).Do(context.Background()).Error()
}

// common returns a policy of one of five common kinds, as the benchmark of package policy has them.
func common(i int) *networkingv1.NetworkPolicy {
	team := &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint("t", i%20)}}
	app := metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app", i%workloads)}}
	all := &metav1.LabelSelector{}
	port := func(name string) []networkingv1.NetworkPolicyPort {
		value := intstr.FromString(name)
		return []networkingv1.NetworkPolicyPort{{Port: &value}}
	}
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: space(i), Name: fmt.Sprint("p", i)}}
	switch i / spaces % 5 {
	case 0: // deny all
		p.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress", "Egress"}
	case 1: // within the namespace
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: all}}}}
		p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: all}}}}
	case 2: // one workload to another
		p.Spec.PodSelector = app
		tier := &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "tier1"}}
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: tier}}, Ports: port("http")}}
	case 3: // from a team's namespaces, and from a range
		p.Spec.PodSelector = app
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
			{NamespaceSelector: team}, {IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.3.0.0/16"}}},
		}}}
	default: // to a team's metrics
		p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: team}}, Ports: port("metrics")}}
	}
	return p
}
