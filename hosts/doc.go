// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts is the agent that makes one CNI network span many hosts
// (docs/hosts.md, docs/adr/0032). On each host it
//
//	claims   a block of addresses of each network in the store
//	renders  a CNI configuration that hands out from the block
//	routes   the other hosts' blocks to them (internal/mesh)
//	tells    the store which containers are here, and what they are called
//	answers  for the names of all of them (hosts/names)
//
// It only prepares: what sets up a container reads the configuration and asks
// neither the agent nor the store. While the store is away the agent goes on
// with what it last knew, and takes nothing away.
package hosts
