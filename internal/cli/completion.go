// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"strings"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/internal/paths"
)

const completionLong = `Print a script that completes commands, flags, networks and plugins.

  bash   source <(patchbay completion bash)
  zsh    source <(patchbay completion zsh)
  fish   patchbay completion fish | source`

type completionCommand struct {
	app  *app
	Args struct {
		Shell string `positional-arg-name:"bash|zsh|fish" required:"1"`
	} `positional-args:"yes"`
}

// Execute prints the script. All three ask the program itself, through the
// library's protocol: GO_FLAGS_COMPLETION and the words so far.
func (c *completionCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	switch c.Args.Shell {
	case "bash":
		return c.app.print(bashCompletion)
	case "zsh":
		return c.app.print("autoload -U +X bashcompinit && bashcompinit\n" + bashCompletion)
	case "fish":
		return c.app.print(fishCompletion)
	}
	return usage("the shells are bash, zsh and fish", "no completion for shell %q", c.Args.Shell)
}

const bashCompletion = `_patchbay() {
    local IFS=$'\n'
    COMPREPLY=($(GO_FLAGS_COMPLETION=1 "${COMP_WORDS[0]}" "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _patchbay patchbay
`

const fishCompletion = `function __patchbay_complete
    set -l words (commandline -opc)
    GO_FLAGS_COMPLETION=1 $words[1] $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c patchbay -a '(__patchbay_complete)'
`

// networkName is an argument that completes to a network.
type networkName string

// Complete lists the networks that begin with match. The library calls it
// outside any command, hence on the process's own environment.
func (*networkName) Complete(match string) (out []flags.Completion) {
	list, _ := networks(os.Getenv, paths.Default()) // a broken file completes to nothing
	for _, n := range list {
		if strings.HasPrefix(n.Name, match) {
			out = append(out, flags.Completion{Item: n.Name})
		}
	}
	return out
}
