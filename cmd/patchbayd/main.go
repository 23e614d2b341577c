// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command patchbayd is what stays: the keeper of DHCP leases. Nothing of
// Patchbay needs it to set up or tear down a container, but the plugin dhcp.
package main

import (
	"os"

	"github.com/patchbay-net/patchbay/internal/daemon"
)

func main() { os.Exit(daemon.Main(os.Args[1:], os.Stderr)) }
