// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/patchbay-net/patchbay/daemons/node/lan"

// lanKind returns a kind of the objects that decide about addresses of load balancers.
func lanKind(c *lan.Cluster, k lan.Kind) copies { return kindOf[lan.Kind]{c, k} }

// lanWatches returns what follows the kinds that only addresses of load balancers need.
func lanWatches(c *lan.Cluster) []*kindWatch {
	return []*kindWatch{
		{copies: lanKind(c, lan.ConfigMaps), path: "/api/v1/namespaces/" + lan.Namespace + "/configmaps", fields: "metadata.name=" + lan.PoolsName},
		{copies: lanKind(c, lan.Leases), path: leasesPath},
	}
}
