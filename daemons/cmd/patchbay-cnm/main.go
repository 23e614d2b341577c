// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command patchbay-cnm contains the plugins cnm and cnm-ipam, and a few commands for them. The
// name by which it is called selects a plugin. Docker's drivers speak HTTP and TLS. If one
// program linked these, every other plugin would start more slowly. So patchbay-cnm is a separate
// program.
package main

import (
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/daemons/cnm/cnmcli"
	"github.com/patchbay-net/patchbay/plugin"
)

func main() {
	if p := cnmcli.Find(filepath.Base(os.Args[0])); p != nil {
		os.Exit(plugin.MainOf(p, cnmcli.Plugins()))
	}
	os.Exit(cnmcli.Main(os.Args[1:], os.Stdout, os.Stderr))
}
