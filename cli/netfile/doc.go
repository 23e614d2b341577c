// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netfile makes the file of a network from a few options, describes such a file,
// and removes a network: `patchbay network create`, `ls`, `inspect` and `rm`.
//
// The computation is pure: New returns the configuration, given what is Taken. The file is
// an ordinary chain (interface plugin, portmap, firewall), which every runtime and the
// reference's plugins accept.
package netfile
