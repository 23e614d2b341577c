// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command witness says what kube-network-policies, the engine of network policies of Kubernetes' own
// developers, decides about packets. It reads questions from its standard input, as JSON: a cluster,
// or a packet in the last cluster. It answers each on a line of its standard output.
//
// Only the engine's evaluator runs, on objects that no API server has seen. What its agent does in the
// kernel before it asks the evaluator is not here. internal/test/policytest asks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/kube-network-policies/pkg/podinfo"
	clusternetworkpolicy "sigs.k8s.io/kube-network-policies/plugins/npa-v1alpha2"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyinformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"
)

// question has one field: the cluster from now on, or a packet in it.
type question struct {
	Cluster *cluster `json:"cluster"`
	Packet  *packet  `json:"packet"`
}

// cluster and packet are policytest.Cluster and policytest.Probe. This module does not import them: it
// would require what Patchbay requires.
type cluster struct {
	Namespaces      []corev1.Namespace              `json:"namespaces"`
	Nodes           []corev1.Node                   `json:"nodes"`
	Pods            []corev1.Pod                    `json:"pods"`
	Policies        []networkingv1.NetworkPolicy    `json:"policies"`
	ClusterPolicies []v1alpha2.ClusterNetworkPolicy `json:"clusterPolicies"`
}

type packet struct {
	From     netip.Addr      `json:"from"`
	To       netip.Addr      `json:"to"`
	Protocol corev1.Protocol `json:"protocol"`
	Port     int             `json:"port"`
}

type answer struct {
	Allowed bool   `json:"allowed"`
	Error   string `json:"error,omitempty"`
}

func main() {
	if err := answerAll(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "witness: %v\n", err)
		os.Exit(1)
	}
}

func answerAll(questions io.Reader, answers io.Writer) error {
	in, out := json.NewDecoder(questions), json.NewEncoder(answers)
	var engine *networkpolicy.PolicyEngine // the first question is a cluster
	for {
		var q question
		switch err := in.Decode(&q); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read a question: %w", err)
		}
		var a answer
		var err error
		if q.Cluster != nil {
			engine, err = engineOf(q.Cluster)
		} else {
			a.Allowed, err = engine.EvaluatePacket(context.Background(), q.Packet.parsed())
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

// parsed is the packet as network.ParsePacket returns it: ICMP has no protocol there.
func (p *packet) parsed() *network.Packet {
	out := &network.Packet{SrcIP: net.IP(p.From.AsSlice()), DstIP: net.IP(p.To.AsSlice()), DstPort: p.Port}
	if p.Protocol != "ICMP" {
		out.Proto = p.Protocol
	}
	return out
}

// engineOf puts the evaluators together as cmd/kube-network-policies/npa-v1alpha2 does, over listers
// whose informers never start.
func engineOf(c *cluster) (*networkpolicy.PolicyEngine, error) {
	core := informers.NewSharedInformerFactory(nil, 0)
	namespaces, nodes, pods := core.Core().V1().Namespaces(), core.Core().V1().Nodes(), core.Core().V1().Pods()
	policies := core.Networking().V1().NetworkPolicies()
	clusterPolicies := policyinformers.NewSharedInformerFactory(nil, 0).Policy().V1alpha2().ClusterNetworkPolicies()
	byAddress, err := podinfo.NewInformerResolver(pods.Informer())
	if err != nil {
		return nil, err
	}
	tier := func(tier v1alpha2.Tier) api.PolicyEvaluator {
		return clusternetworkpolicy.NewClusterNetworkPolicy(tier, clusterPolicies, nil, nodes.Lister())
	}
	engine := networkpolicy.NewPolicyEngine(
		podinfo.NewInformerProvider(pods, namespaces, nodes, []podinfo.IPResolver{byAddress}),
		[]api.PolicyEvaluator{
			tier(v1alpha2.AdminTier),
			networkpolicy.NewStandardNetworkPolicy("", namespaces, pods, policies),
			tier(v1alpha2.BaselineTier),
		})
	return engine, errors.Join(
		fill(namespaces.Informer(), c.Namespaces), fill(nodes.Informer(), c.Nodes), fill(pods.Informer(), c.Pods),
		fill(policies.Informer(), c.Policies), fill(clusterPolicies.Informer(), c.ClusterPolicies))
}

func fill[T any](informer cache.SharedIndexInformer, objects []T) error {
	for i := range objects {
		if err := informer.GetIndexer().Add(&objects[i]); err != nil {
			return err
		}
	}
	return nil
}
