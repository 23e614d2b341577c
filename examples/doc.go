// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples shows programs that are not part of Patchbay: a container runtime, the plugins resolver and hosts in Go and
// sh-ipam in shell, and chains that wrap one of our plugins. The package has no code; its tests run the tests of package
// conformance on the examples.
package examples
