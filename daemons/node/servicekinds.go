// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/patchbay-net/patchbay/daemons/node/services"

// serviceKind returns a kind of the objects that decide about Services.
func serviceKind(c *services.Cluster, k services.Kind) copies { return kindOf[services.Kind]{c, k} }

// serviceWatches returns what follows the kinds that decide about Services, but the Nodes. Those that kube-proxy leaves out are left out, too:
// slices of headless Services, and Services that another program serves unless balanced is set: they may have addresses of load balancers. Before
// Kubernetes 1.33, an API server has no ServiceCIDRs.
func serviceWatches(c *services.Cluster, balanced bool) []*kindWatch {
	served := "!service.kubernetes.io/service-proxy-name"
	if balanced {
		served = ""
	}
	return []*kindWatch{
		{copies: serviceKind(c, services.Services), path: "/api/v1/services", labels: served},
		{copies: serviceKind(c, services.EndpointSlices), path: "/apis/discovery.k8s.io/v1/endpointslices", labels: "!service.kubernetes.io/headless"},
		{copies: serviceKind(c, services.ServiceCIDRs), path: "/apis/networking.k8s.io/v1/servicecidrs", optional: true},
	}
}
