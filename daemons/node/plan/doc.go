// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan computes what a Kubernetes node needs, from the Nodes of its cluster and the node's
// own settings: the mesh with its peers, the pods' network for the container runtime, and the
// problems of the Nodes. Its functions are pure: they ask neither the API server nor the kernel.
package plan
