// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package systemd has the units that Patchbay's programs install. Packages of a
// distribution take the files beside it.
package systemd

import "embed"

// Units are the files, by name.
//
//go:embed *.service *.socket
var Units embed.FS
