// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts is the agent that makes one CNI network span many hosts
// (docs/hosts.md, docs/adr/0032). On each host it
//
//	claims     a block of addresses of each network in the store
//	renders    a CNI configuration that allocates addresses from the block
//	routes     the other hosts' blocks to them (internal/mesh)
//	publishes  the host's containers and their names in the store
//	answers    DNS queries for the names of all containers (hosts/names)
//
// The agent only prepares. A plugin that connects a container reads the configuration, and
// needs neither the agent nor the store. While the store is unreachable, the agent works with
// the state that it last read, and removes nothing.
package hosts
