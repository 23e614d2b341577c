// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples shows plugins made outside of Patchbay's tree: hosts in Go, sh-ipam
// in shell, and chains that wrap one of ours. It holds no code; its tests hold the
// examples to the contract of package conformance.
package examples
