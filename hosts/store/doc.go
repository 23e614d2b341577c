// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package store is what many hosts know of each other: their networks, the nodes, the node
// of each block of addresses, and the host of each endpoint (docs/hosts.md). Its interface
// is typed. Tables builds it from rows of bytes: it defines once what a row contains, which
// keys exist and what is refused. Package hosts/store/etcd has the rows in etcd, and
// test/chaos in memory.
//
// A plugin that sets up a container never reads the store: while the store is away, a node
// continues with the block that it holds.
package store
