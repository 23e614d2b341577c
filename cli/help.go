// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/patchbay-net/patchbay/internal/terminal"

const helpLong = `Print the help of a command, as its --help does:

  patchbay help network create`

type helpCommand struct {
	app  *app
	Args struct {
		Command []commandName `positional-arg-name:"COMMAND..."`
	} `positional-args:"yes"`
}

// Execute prints the help.
func (c *helpCommand) Execute(args []string) error {
	var words []string
	for _, w := range c.Args.Command {
		words = append(words, string(w))
	}
	text, err := terminal.Help(c.app.parsed, append(words, args...), c.app.width())
	if err != nil {
		return usage("patchbay --help lists the commands", "%w", err)
	}
	return c.app.print(text)
}
