// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package store is what many hosts know of each other: their networks, the nodes, the node
// of each block of addresses, and the host of each endpoint (docs/hosts.md). Its interface
// is typed; the stored form is the business of an engine. store/file keeps the data in a
// directory, store/etcd in etcd; each passes the suite of test/storetest.
//
// A plugin that sets up a container never reads the store: while the store is away, a node
// continues with the block that it holds.
package store
