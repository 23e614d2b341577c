// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package node is the agent of a Kubernetes node. It watches the cluster's Nodes, keeps the
// routes and tunnels to them, writes the pods' network for the container runtime once, and
// reports what is wrong. No pod waits for it, or for the API server: what it makes stays in
// the kernel and on the disk when it stops.
package node
