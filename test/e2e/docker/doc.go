// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker runs patchbayd docker under real dockerds: Debian's 20.10 and a current one
// (test/labs/docker), each in its own network and mount namespaces.
//
// The tests need root, Debian's docker.io, nftables and busybox-static, and run
// when PATCHBAY_E2E=1.
package docker
