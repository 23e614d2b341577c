// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package beside tests what docs/beside.md promises to other programs of a node, in a kernel.
package beside
