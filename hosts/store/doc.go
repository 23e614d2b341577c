// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package store defines what hosts share: networks, nodes, which node holds each block of
// addresses, and which containers are on each host (docs/hosts.md). Its interface is typed.
// Tables implements it on rows of bytes, so the content of rows, the form of keys and what is
// refused are defined once. Package hosts/store/etcd stores the rows in etcd, and test/chaos in
// memory.
//
// A plugin that connects a container never reads the store. While the store cannot be reached,
// a node continues with the block that it holds.
package store
