// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/patchbay-net/patchbay/daemons/node/networks"

// networkKind returns a kind of the objects that decide about further networks of pods.
func networkKind(c *networks.Cluster, k networks.Kind) copies { return kindOf[networks.Kind]{c, k} }

// podNetworkWatches returns what follows these kinds. Only the pods of this node count, also those that have finished: their status may not be
// written yet.
func podNetworkWatches(c *networks.Cluster, self string) []*kindWatch {
	return []*kindWatch{
		{copies: networkKind(c, networks.Definitions), path: "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions", optional: true},
		{copies: networkKind(c, networks.Pods), path: "/api/v1/pods", fields: "spec.nodeName=" + self},
	}
}
