// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/patchbay-net/patchbay/daemons/node/policies"

// livePods are pods that have not finished. A pod that finishes counts as deleted.
const livePods = "status.phase!=Succeeded,status.phase!=Failed"

// policyKind returns a kind of the objects that decide about network policies.
func policyKind(c *policies.Cluster, k policies.Kind) copies { return kindOf[policies.Kind]{c, k} }

// policyWatches returns what follows the kinds that nothing else in the agent needs.
func policyWatches(c *policies.Cluster) []*kindWatch {
	return []*kindWatch{
		{copies: policyKind(c, policies.Pods), path: "/api/v1/pods", fields: livePods},
		{copies: policyKind(c, policies.NetworkPolicies), path: "/apis/networking.k8s.io/v1/networkpolicies"},
		{
			copies: policyKind(c, policies.ClusterNetworkPolicies), path: "/apis/policy.networking.k8s.io/" + clusterVersion + "/clusternetworkpolicies",
			definition: "clusternetworkpolicies.policy.networking.k8s.io", unused: func() bool { return c.Empty(policies.ClusterNetworkPolicies) },
		},
	}
}
