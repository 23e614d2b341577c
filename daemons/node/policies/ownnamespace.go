// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"math"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// systemNamespace has the pods that serve all others, such as the cluster's DNS.
const systemNamespace = "kube-system"

// ownNamespace makes the policies of the default "from my own namespace": for each namespace one of
// the tier Baseline, after all policies of users, that denies pods of other namespaces. A
// NetworkPolicy or a rule of an earlier policy decides before it.
type ownNamespace struct {
	made map[string]policy.ClusterNetworkPolicy
}

// DefaultOwnNamespace lets pods receive packets of other pods only if these are in the same namespace,
// where no policy says otherwise. Call it before Follow.
func (c *Cluster) DefaultOwnNamespace() {
	c.defaults = &ownNamespace{make(map[string]policy.ClusterNetworkPolicy)}
}

// add adds the policies of these namespaces.
func (o *ownNamespace) add(to []policy.ClusterNetworkPolicy, namespaces []policy.Namespace) []policy.ClusterNetworkPolicy {
	if o == nil {
		return to
	}
	for _, n := range namespaces {
		if n.Name == systemNamespace {
			continue
		}
		p, ok := o.made[n.Name]
		if !ok {
			p = fromOwn(n.Name)
			o.made[n.Name] = p
		}
		to = append(to, p)
	}
	return to
}

// fromOwn returns the policy of one namespace. No user's policy can have its name or its priority.
func fromOwn(namespace string) policy.ClusterNetworkPolicy {
	own := &policy.Selector{MatchLabels: policy.Labels{{Key: "kubernetes.io/metadata.name", Value: namespace}}}
	from := func(action string, s *policy.Selector) policy.ClusterIngressRule {
		return policy.ClusterIngressRule{Action: action, From: []policy.PodPeer{{Namespaces: s}}}
	}
	return policy.ClusterNetworkPolicy{Name: "own-namespace:" + namespace, Spec: policy.ClusterNetworkPolicySpec{
		Tier: "Baseline", Priority: math.MaxInt32, Subject: policy.PodPeer{Namespaces: own},
		Ingress: []policy.ClusterIngressRule{from("Accept", own), from("Deny", &policy.Selector{})},
	}}
}
