// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package spec holds the Container Network Interface as data: the wire types
// of every version from 0.1.0 to 1.1.0, the rules for names and versions, the
// error object and the call envelope (environment and standard input).
//
// There is one Go type for a result, in the newest shape; ParseResult and
// Result.Encode convert at the edge. Nothing here touches a file, a process or
// the network.
package spec
