// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netfile writes the file of a network from a few options, describes such a file, and
// removes a network. It implements `patchbay network create`, `ls`, `inspect` and `rm`.
//
// New is a pure function: it returns the configuration for a request, given what is already
// used. The file lists ordinary plugins (one that makes the interface, portmap, firewall).
// Every runtime can read it, and the reference's plugins can run it.
package netfile
