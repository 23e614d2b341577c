// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"fmt"
	"strings"
)

// Completion returns the script by which a shell (bash, zsh or fish) completes the command line of
// one of our programs. At each completion, the script runs the program with the variable
// GO_FLAGS_COMPLETION set. The arguments are the words typed so far. The library go-flags defines
// this protocol. An error says which shells there are.
func Completion(program, shell string) (script string, err error) {
	switch shell {
	case "bash":
		script = bashCompletion
	case "zsh":
		script = zshCompletion
	case "fish":
		script = fishCompletion
	default:
		return "", fmt.Errorf("no completion for shell %q: the shells are bash, zsh and fish", shell)
	}
	return strings.ReplaceAll(script, "PROGRAM", program), nil
}

const bashCompletion = `_PROGRAM() {
    local IFS=$'\n'
    COMPREPLY=($(GO_FLAGS_COMPLETION=1 "${COMP_WORDS[0]}" "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _PROGRAM PROGRAM
`

// zsh runs a file of its $fpath as the function of that name, and compinit finds what it completes in the first line. A
// file that is sourced says it by compdef.
const zshCompletion = `#compdef PROGRAM
_PROGRAM() {
    local -a found
    found=(${(f)"$(GO_FLAGS_COMPLETION=1 $words[1] "${(@Q)words[2,CURRENT]}" 2>/dev/null)"})
    compadd -a found || _files
}
if [[ $funcstack[1] = _PROGRAM ]]; then
    _PROGRAM "$@"
else
    compdef _PROGRAM PROGRAM
fi
`

const fishCompletion = `function __PROGRAM_complete
    set -l words (commandline -opc)
    GO_FLAGS_COMPLETION=1 $words[1] $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c PROGRAM -a '(__PROGRAM_complete)'
`
