// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command patchbay-cnm is the plugins cnm and cnm-ipam, chosen by the name it is called
// by, and their few commands. It is a separate program because Docker's drivers speak HTTP
// and TLS, which no other plugin should pay for.
package main

import (
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/cnm/cnmcli"
	"github.com/patchbay-net/patchbay/plugin"
)

func main() {
	if p := cnmcli.Find(filepath.Base(os.Args[0])); p != nil {
		os.Exit(plugin.MainOf(p, cnmcli.Plugins()))
	}
	os.Exit(cnmcli.Main(os.Args[1:], os.Stdout, os.Stderr))
}
