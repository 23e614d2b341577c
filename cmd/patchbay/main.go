// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command patchbay is every plugin, chosen by the name it is called by, and the
// command line.
package main

// A plugin lives for a millisecond: reading cgroup limits and starting a
// goroutine to follow them would be a tenth of it.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

import (
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
)

func main() {
	if p := all.Find(filepath.Base(os.Args[0])); p != nil && (os.Getenv("CNI_COMMAND") != "" || p.Name != "patchbay") {
		os.Exit(plugin.MainOf(p, all.Plugins()))
	}
	os.Exit(2)
}
