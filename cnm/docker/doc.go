// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker makes any CNI network one of Docker's: it is the network driver
// and the IPAM driver of `patchbayd docker` (docs/docker.md, docs/adr/0030).
//
// Docker asks for the interface before there is a container, moves it by itself,
// and looks at neither routes of any subtlety nor sysctls. So a chain runs in
// three parts:
//
//	hold   its first plugin, in a holding namespace, at CreateEndpoint; Join puts
//	       the interface where libnetwork takes it from
//	post   the rest, in the container's namespace, after libnetwork moved the
//	       interface and before the container's process starts (Docker 28 and
//	       later; before, in the holding namespace at Join)
//	ports  what publishes ports, when the endpoint gets the default gateway
//
// Which Docker it is is never asked: whether the sandbox is there at Join tells.
//
// No call asks Docker anything, because Docker waits for the call. Each call
// about one endpoint waits for the one before, and for no other endpoint's.
package docker
