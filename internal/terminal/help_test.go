// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"testing"

	"github.com/jessevdk/go-flags"
)

type command struct {
	Store string `long:"store" value-name:"URL" description:"etcds://USER@HOST/CLUSTER?ca=FILE&cert=FILE&key=FILE,etcds://OTHER@HOST/CLUSTER?ca=FILE"`
	Force bool   `long:"force" short:"f" description:"in any case"`
	From  string `long:"from" value-name:"crictl|podman|docker|FILE" default:"x" env:"FROM" description:"treat containers that this runtime lists as alive"`
	Old   bool   `long:"old" hidden:"yes"`
	Args  struct {
		Name string   `positional-arg-name:"NAME" required:"1" description:"whose"`
		Rest []string `positional-arg-name:"MORE"`
	} `positional-args:"yes"`

	Remove struct {
		Deep bool `long:"deep" choice:"a" description:"all below"`
	} `command:"rm" description:"remove one"`
}

func table(t *testing.T) *flags.Command {
	t.Helper()
	p := flags.NewNamedParser("prog", flags.HelpFlag)
	if _, err := p.AddCommand("do", "does", "Does much:\n\n  prog do x", new(command)); err != nil {
		t.Fatal(err)
	}
	return p.Command
}

func TestHelp(t *testing.T) {
	got, err := Help(table(t), []string{"do"}, 60)
	if err != nil {
		t.Fatal(err)
	}
	const want = `Usage:
  prog do [FLAGS] NAME [MORE] COMMAND

Does much:

  prog do x

Arguments:
  NAME                    whose

Flags:
      --store=URL         etcds://USER@HOST/CLUSTER?ca=FILE&cert=FILE&key=FILE,etcds://OTHER@HOST/CLUSTER?ca=FILE
  -f, --force             in any case
      --from=crictl|podman|docker|FILE
                          treat containers that this runtime
                          lists as alive (default: x)
                          [$FROM]

Commands:
  rm                      remove one

prog do COMMAND --help tells more of one.
`
	if got != want {
		t.Errorf("got\n%s", got)
	}
}

// TestHelpBelow checks the help of a subcommand: its own flags come first, and its parents' flags
// take one line.
func TestHelpBelow(t *testing.T) {
	got, err := Help(table(t), []string{"do", "rm"}, 80)
	if err != nil {
		t.Fatal(err)
	}
	const want = `Usage:
  prog do rm [FLAGS]

Flags:
      --deep              all below

With the flags of prog do, too: --store, --force, --from.
`
	if got != want {
		t.Errorf("got\n%s", got)
	}
	if _, err := Help(table(t), []string{"do", "ls"}, 80); err == nil || err.Error() != `unknown command "ls"; use rm` {
		t.Error(err)
	}
}
