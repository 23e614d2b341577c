// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples shows plugins from outside of Patchbay's tree: hosts in Go, sh-ipam in
// shell, and chains that wrap one of our plugins. It holds no code; its tests run the
// contract of package conformance on the examples.
package examples
