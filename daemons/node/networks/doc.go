// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package networks is what the agent of a Kubernetes node knows and decides about further networks of pods (ADR 95, ADR 99). It keeps
// the cluster's NetworkAttachmentDefinitions and this node's pods (Cluster), and says which annotation network-status a pod gets
// (Statuses, Sent) and why a pod cannot be attached (Problems). It reads no file and asks no server.
package networks
