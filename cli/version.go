// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/patchbay-net/patchbay/internal/buildinfo"

const versionLong = `Print the version, the commit it was built from and the versions of the CNI
specification it speaks.`

type versionCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object"`
}

// Execute prints the build information.
func (c *versionCommand) Execute(args []string) error {
	c.app.json = c.JSON
	if err := noArgs(args); err != nil {
		return err
	}
	b := buildinfo.Read()
	if c.JSON {
		return c.app.printJSON(b)
	}
	return c.app.print(b.Text("patchbay"))
}

// noArgs refuses arguments that a command does not have.
func noArgs(args []string) error {
	if len(args) > 0 {
		return usage("", "unexpected argument %q", args[0])
	}
	return nil
}
