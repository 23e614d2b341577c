// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab runs a real dockerd with patchbayd docker beside it, for tests. Both run in their own
// network and mount namespaces (test/labs/docker), with an outside network behind the bridge out0.
// The package also checks what containers leave behind.
//
// It needs root, Debian's docker.io, nftables, iproute2 and busybox-static.
package lab
