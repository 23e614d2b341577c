// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cnm is Docker's protocol for network drivers and IPAM drivers outside of
// dockerd (libnetwork's "remote" drivers, legacy v1 plugins): its messages, a server for
// drivers, a client for programs that use a driver, and the lookup of drivers by name.
//
//	type driver struct{ … }                                  // a NetworkDriver
//	cnm.Serve(ctx, listener, &cnm.Handler{Network: driver{}})
//
//	at, err := cnm.DefaultDirs().Find("weave")
//	c, err := cnm.NewClient(at, cnm.ClientOptions{})
//	answer, err := c.Join(ctx, &cnm.JoinRequest{…})          // *Client is a NetworkDriver too
//
// The facts are those of moby (daemon/libnetwork/drivers/remote/api,
// daemon/libnetwork/ipams/remote/api, pkg/plugins) from 20.10 to 29: one set of
// structs serves all. Addresses are CIDR on the wire unless a field says otherwise; an
// unknown address is the empty string, here the zero value.
package cnm
