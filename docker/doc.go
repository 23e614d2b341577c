// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker lets Docker use any CNI network: it is the network driver and the IPAM
// driver of `patchbayd docker` (docs/docker.md, docs/adr/0030).
//
// Docker requests the interface before the container exists, moves it itself, and supports
// only simple routes and no sysctls. So a chain runs in three parts:
//
//	hold   its first plugin, in a holding namespace, at CreateEndpoint; Join puts
//	       the interface where libnetwork takes it from
//	post   the rest, in the container's namespace, after libnetwork moved the
//	       interface and before the container's process starts (Docker 28 and
//	       later; before, in the holding namespace at Join)
//	ports  the plugins that publish ports, when the endpoint gets the default gateway
//
// The driver does not ask for Docker's version: it sees whether the sandbox exists at Join.
//
// No call asks Docker anything, because Docker waits for the call. Each call for an endpoint
// waits for the previous call of that endpoint, and for no other endpoint's.
package docker
