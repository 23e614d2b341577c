// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package patchbay is the root of a CNI system: the protocol in spec, the runtime library
// in chain, the plugin library in plugin with every plugin below it, and the programs in
// cmd. It holds no code; its tests are the laws of the repository. Begin with
// ARCHITECTURE.md.
package patchbay
