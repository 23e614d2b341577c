// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"os"

	"github.com/patchbay-net/patchbay/internal/terminal"
)

const helpLong = `Print the help of a command, as its --help does:

  patchbayd help hosts create`

// helpCommand is `patchbayd help`.
type helpCommand struct {
	app *app
}

// Execute prints the help.
func (c *helpCommand) Execute(words []string) error {
	text, err := terminal.Help(c.app.parsed, words, terminal.Width(os.Stdout))
	if err != nil {
		return usageError{err}
	}
	_, err = fmt.Print(text)
	return err
}

const versionLong = `Print the version, the commit it was built from and the versions of the CNI
specification it speaks.`

// versionCommand is `patchbayd version`.
type versionCommand struct{}

// Execute prints the version.
func (*versionCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	_, err := fmt.Print(terminal.ReadBuild().Text("patchbayd"))
	return err
}
