// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab is a real dockerd with patchbayd docker beside it, for tests: in its own
// network and mount namespace (test/labs/docker), with an outside network behind the
// bridge out0 and checks of what is left.
//
// It needs root, Debian's docker.io, nftables, iproute2 and busybox-static.
package lab
