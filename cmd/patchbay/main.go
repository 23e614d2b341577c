// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// A plugin runs for a millisecond. Go's runtime would spend a tenth of that time on reading
// cgroup limits and starting a goroutine that follows them.
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command patchbay contains every other plugin and the command line. The name by which it is
// called selects a plugin.
package main

import (
	"os"
	"path/filepath"
	"runtime"

	"github.com/patchbay-net/patchbay/cli"
	"github.com/patchbay-net/patchbay/internal/handover"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/plugin/dhcp"
)

func main() {
	// A system call may move main from the first thread, which the resident process needs.
	runtime.LockOSThread()
	handover.Restore()
	if len(os.Args) == 2 && os.Args[1] == handover.Argument {
		os.Exit(resident())
	}
	runtime.UnlockOSThread()
	name := filepath.Base(os.Args[0])
	if name == "dhcp" && len(os.Args) > 1 && os.Args[1] == "daemon" {
		os.Exit(dhcp.Daemon(os.Args[2:], os.Stderr))
	}
	if p := all.Find(name); p != nil && !commandLine(name) {
		os.Exit(plugin.Continue(p, all.Plugins(), begun()))
	}
	os.Exit(cli.Main(all.Plugins()))
}

// commandLine reports whether a user called the program by its own name, which is also the name
// of a plugin. Runtimes set CNI_COMMAND and pass no arguments.
func commandLine(name string) bool {
	return name == "patchbay" && (len(os.Args) > 1 || os.Getenv("CNI_COMMAND") == "")
}
