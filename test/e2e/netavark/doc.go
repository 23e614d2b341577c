// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netavark tests the driver of podman's networks with podman 5 and netavark of a newer Debian
// (test/labs/podman), in private namespaces. The tests need root and PATCHBAY_E2E=1.
package netavark
