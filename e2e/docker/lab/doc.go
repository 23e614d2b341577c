// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab is a real dockerd with patchbayd docker beside it, for tests: in a
// network and a mount namespace of its own (test/labs/docker), with an outside
// world behind the bridge out0 and a look at what is left behind.
//
// It needs root, Debian's docker.io, nftables, iproute2 and busybox-static.
package lab
