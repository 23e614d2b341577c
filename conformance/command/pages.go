// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"io"
	"os"

	"github.com/patchbay-net/patchbay/internal/terminal"
)

const completionLong = `Print a script that completes commands, flags and files.

  bash   source <(patchbay-conformance completion bash)
  zsh    source <(patchbay-conformance completion zsh)
  fish   patchbay-conformance completion fish | source`

// completionCommand is `patchbay-conformance completion`.
type completionCommand struct {
	app  *app
	Args struct {
		Shell string `positional-arg-name:"bash|zsh|fish" required:"1"`
	} `positional-args:"yes"`
}

// Execute prints the script.
func (c *completionCommand) Execute([]string) error {
	script, err := terminal.Completion(program, c.Args.Shell)
	if err != nil {
		return usage("", "%w", err)
	}
	_, err = io.WriteString(c.app.stdout, script)
	return err
}

const manLong = `Print the man page, in roff:

  patchbay-conformance man | man -l -`

// manCommand is `patchbay-conformance man`.
type manCommand struct{ app *app }

// Execute prints the page. The parser is a new one: to the one that has parsed, the library has added --help of each command.
func (c *manCommand) Execute([]string) error {
	p, err := c.app.parser()
	if err != nil {
		return err
	}
	_, err = io.WriteString(c.app.stdout, terminal.ManPage(p, os.Getenv("SOURCE_DATE_EPOCH") != "")+manTail)
	return err
}

// manTail has the sections that the library does not write.
const manTail = `.SH EXIT STATUS
.TP
0
all is well
.TP
1
a rule is broken
.TP
2
a mistake on the command line
.TP
3
something could not be tested
.SH ENVIRONMENT
.TP
CNI_PATH
directories of the plugins that a plugin calls
`
