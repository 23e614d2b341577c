// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts runs three Docker hosts on one network (docs/hosts.md): two current dockerds and
// Debian's 20.10 (test/labs/docker), each in its own namespaces with patchbayd docker and patchbayd
// hosts. A switch connects them to Debian's etcd.
//
// The tests need root, Debian's docker.io, etcd-server, nftables and
// busybox-static, and run when PATCHBAY_E2E=1.
package hosts
