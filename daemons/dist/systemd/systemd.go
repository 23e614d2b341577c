// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package systemd contains the unit files that Patchbay's programs install. A distribution's
// package can use the same files from this directory.
package systemd

import "embed"

// Units are the files, by name.
//
//go:embed *.service *.socket *.timer
var Units embed.FS
