// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cnm implements the protocol between Docker and drivers outside of dockerd, for
// network drivers and IPAM drivers (libnetwork's "remote" drivers, legacy v1 plugins). It has
// the messages, a server for drivers, a client for programs that use a driver, and a search for
// drivers by name.
//
//	type driver struct{ … }                                  // a NetworkDriver
//	cnm.Serve(ctx, listener, &cnm.Handler{Network: driver{}})
//
//	at, err := cnm.DefaultDirs().Find("weave")
//	c, err := cnm.NewClient(at, cnm.ClientOptions{})
//	answer, err := c.Join(ctx, &cnm.JoinRequest{…})          // *Client is a NetworkDriver too
//
// The facts come from moby 20.10 to 29 (daemon/libnetwork/drivers/remote/api,
// daemon/libnetwork/ipams/remote/api, pkg/plugins). The same structs serve all these versions.
// An address in a message has a prefix length unless its field says otherwise. An unknown
// address is the empty string in a message, and the zero value in Go.
package cnm
