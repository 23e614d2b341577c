// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command patchbayd runs the services: the keeper of DHCP leases (dhcp), the network
// driver for Docker (docker), and the agent of networks that span hosts (hosts). Only the
// plugin dhcp needs it to set up or tear down a container.
package main

import (
	"os"
	"runtime"

	"github.com/patchbay-net/patchbay/cli/daemon"
)

// init keeps the first thread for main: it is the only one that cannot end, and a goroutine
// that entered a container's namespace on it would leave it there and keep the namespace
// alive.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // only init is certain to run on the first thread

func main() { os.Exit(daemon.Main(os.Args[1:], os.Stderr)) }
