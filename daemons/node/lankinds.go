// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/patchbay-net/patchbay/daemons/node/lan"

// lanKind returns a kind of the objects that decide about addresses of load balancers.
func lanKind(c *lan.Cluster, k lan.Kind) copies { return kindOf[lan.Kind]{c, k} }

// lanWatches returns what follows the kinds that decide about addresses of load balancers, but the Nodes. Services of all proxies may have one.
func lanWatches(c *lan.Cluster) []*kindWatch {
	return []*kindWatch{
		{copies: lanKind(c, lan.Services), path: "/api/v1/services"},
		{copies: lanKind(c, lan.EndpointSlices), path: "/apis/discovery.k8s.io/v1/endpointslices", labels: "!service.kubernetes.io/headless"},
		{copies: lanKind(c, lan.ServiceCIDRs), path: "/apis/networking.k8s.io/v1/servicecidrs", optional: true},
		{copies: lanKind(c, lan.ConfigMaps), path: "/api/v1/namespaces/" + lan.Namespace + "/configmaps", fields: "metadata.name=" + lan.PoolsName},
		{copies: lanKind(c, lan.Leases), path: leasesPath},
	}
}
