// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"os"

	"github.com/patchbay-net/patchbay/internal/terminal"
)

const completionLong = `Print a script that completes commands and flags.

  bash   source <(patchbayd completion bash)
  zsh    source <(patchbayd completion zsh)
  fish   patchbayd completion fish | source`

// completionCommand is `patchbayd completion`.
type completionCommand struct {
	Args struct {
		Shell string `positional-arg-name:"bash|zsh|fish" required:"1"`
	} `positional-args:"yes"`
}

// Execute prints the script.
func (c *completionCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	script, err := terminal.Completion("patchbayd", c.Args.Shell)
	if err != nil {
		return usageError{err}
	}
	_, err = fmt.Print(script)
	return err
}

const manLong = `Print the man page, in roff:

  patchbayd man | man -l -`

// manCommand is `patchbayd man`.
type manCommand struct{ app *app }

// Execute prints the page. The parser is a new one: to the one that has parsed, the library has added --help of each command.
func (c *manCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	p, err := c.app.parser()
	if err != nil {
		return err
	}
	_, err = fmt.Print(terminal.ManPage(p, os.Getenv("SOURCE_DATE_EPOCH") != "") + manTail)
	return err
}

// manTail has the section that the library does not write.
const manTail = `.SH EXIT STATUS
.TP
0
done, or ended by SIGTERM
.TP
1
it failed
.TP
2
a mistake on the command line
`
