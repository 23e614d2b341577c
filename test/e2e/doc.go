// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e calls the plugins of a directory as real callers do: upstream libcni as a library,
// podman on its CNI backend, and containerd's CRI under a kubelet. It also swaps plugin directories
// on a live node, runs two builds on one node, and flushes the firewall while containers are
// attached.
//
// The tests need root and Debian's podman, runc, nftables, iptables and busybox-static, and run
// when PATCHBAY_E2E=1 (`make e2e` provides both). Each test runs in private network, mount and
// process namespaces, so it does not touch the machine, and nothing outlives it.
// PATCHBAY_E2E_PLUGINS names another directory than our own build to drive, PATCHBAY_E2E_REFERENCE
// the reference plugins (default: those of test/reference). The cluster is test/labs/kube.
package e2e
