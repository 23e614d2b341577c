// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package patchbay is the root of a CNI system: the protocol in spec, the library of
// runtimes in chain, the one of plugins in plugin, every plugin below that, and the
// programs in cmd. It holds no code; its tests are the laws of the repository. Begin
// with ARCHITECTURE.md.
package patchbay
