// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package store is what many hosts know of each other: their networks, the nodes,
// which node has which block of addresses, and which endpoints are where
// (docs/hosts.md). It is typed on purpose: what an engine below it stores, and
// how, is the engine's business. store/file keeps it in a directory, store/etcd
// in etcd; each passes the suite of store/storetest.
//
// Nothing that sets up a container reads it: a node works on with the block it
// has while the store is away.
package store
