// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/patchbay-net/patchbay/internal/terminal"

const versionLong = `Print the version, the commit it was built from and the versions of the CNI
specification that it supports.`

type versionCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object"`
}

// Execute prints the build information.
func (c *versionCommand) Execute([]string) error {
	b := terminal.ReadBuild()
	return c.app.show(b, b.Text("patchbay"))
}
