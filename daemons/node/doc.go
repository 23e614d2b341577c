// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package node is the agent of a Kubernetes node. It watches the cluster's Nodes, keeps the routes
// and tunnels to them, writes the pods' network for the container runtime once, and reports what is
// wrong. No pod waits for the agent or the API server: when the agent stops, its routes and files
// stay.
package node
