// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command patchbayd runs the services: the keeper of DHCP leases (dhcp), the network driver for
// Docker (docker), and the agent of networks that span hosts (hosts). Of all plugins, only dhcp
// needs a service to connect or disconnect a container.
package main

import (
	"os"
	"runtime"

	"github.com/patchbay-net/patchbay/daemons/cli"
)

// init reserves the process's first thread for main. If another thread has entered a container's
// namespace, Go ends the thread with its goroutine. Go cannot end the first thread. It would stay
// in the namespace and keep the namespace alive.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // only init is certain to run on the first thread

func main() { os.Exit(daemon.Main(os.Args[1:], os.Stderr)) }
