// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netfile makes the file of a network from a few wishes, reads what such
// a file says, and takes a network away again: `patchbay network create`,
// `ls`, `inspect` and `rm`.
//
// What is computed is pure: New returns the configuration, given what is Taken.
// The file is an ordinary chain (interface plugin, portmap, firewall), which
// every runtime and the reference's plugins take.
package netfile
