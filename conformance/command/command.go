// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package command is the command line of patchbay-conformance. Standard output has only data. For every job with a plugin the
// program runs itself again in new namespaces.
package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/runtimes"
	"github.com/patchbay-net/patchbay/internal/terminal"
)

// These are the exit codes, which docs/conformance.md lists.
const (
	exitOK     = 0
	exitFailed = 1 // a rule is broken
	exitUsage  = 2
	exitUntold = 3 // something could not be tested
)

const program = "patchbay-conformance"

// mark is the environment variable of the process in the new namespaces.
const mark = "PATCHBAY_CONFORMANCE_APART"

const about = `Test CNI plugins and container runtimes of any project, in any language, against the
specification and against what makes users suffer.

  patchbay-conformance init --plugin ./my-plugin --config my.conf >subject.json
  patchbay-conformance run --plugin ./my-plugin --config subject.json
  patchbay-conformance run --dir /opt/cni/bin --html report.html
  patchbay-conformance runtime -- ./calls-my-runtime

Plugins run in new namespaces with an empty /run and /var/lib: nothing touches this
machine's network. An ordinary user can run it where user namespaces are allowed.
The exit status is 0 if all is well, 1 if a rule is broken, 2 for a mistake on
the command line, and 3 if something could not be tested.`

// app is the state of the process that every command shares.
type app struct {
	args           []string
	stdout, stderr io.Writer
	status         int
}

// failure is an error with an exit code and a hint.
type failure struct {
	error
	hint string
	code int
}

func (f *failure) Unwrap() error { return f.error }

func usage(hint, format string, args ...any) error {
	return &failure{error: fmt.Errorf(format, args...), hint: hint, code: exitUsage}
}

// Main runs a command line and returns the exit status. Under the name of a recorder it is a plugin, which has no arguments.
func Main(args []string, stdout, stderr io.Writer) int {
	if runtimes.Recorder(os.Args[0]) {
		return runtimes.Record()
	}
	a := &app{args: args, stdout: stdout, stderr: stderr}
	if len(args) == 0 {
		a.args = []string{"--help"}
	}
	if terminal.AsksVersion(args) {
		fmt.Fprint(stdout, terminal.ReadBuild().Text(program)) //nolint:errcheck // nobody reads
		return exitOK
	}
	p, err := a.parser()
	if err != nil {
		return a.report(err)
	}
	_, err = p.ParseArgs(a.args)
	return a.report(err)
}

// parser returns a new parser with all commands.
func (a *app) parser() (*flags.Parser, error) {
	p := flags.NewNamedParser(program, flags.HelpFlag|flags.PassDoubleDash)
	p.ShortDescription, p.LongDescription, p.Usage = "test CNI plugins and container runtimes", about, "COMMAND"
	for _, c := range []struct {
		name, short, long string
		data              any
	}{
		{"init", "Ask a plugin what it is, and print the subject", initLong, &initCommand{app: a}},
		{"run", "Run the rules", runLong, &runCommand{app: a}},
		{"runtime", "Run the rules for a container runtime", runtimeLong, &runtimeCommand{app: a}},
		{"list", "Print the rules", "Print every rule with its level and its source.", &listCommand{app: a}},
		{"completion", "Print a shell completion script", completionLong, &completionCommand{app: a}},
		{"man", "Print the man page", manLong, &manCommand{app: a}},
		{partName, "", "", &partCommand{app: a}},
	} {
		command, err := p.AddCommand(c.name, c.short, c.long, c.data)
		if err != nil {
			return nil, err
		}
		command.Hidden = c.name == partName
	}
	p.CommandHandler = func(c flags.Commander, rest []string) error {
		if len(rest) > 0 {
			return usage("", "unexpected argument %q", rest[0])
		}
		return c.Execute(nil)
	}
	return p, nil
}

// report prints an error and returns the exit status.
func (a *app) report(err error) int {
	if err == nil {
		return a.status
	}
	var asked *flags.Error
	if errors.As(err, &asked) {
		if asked.Type == flags.ErrHelp {
			fmt.Fprintln(a.stdout, asked.Message) //nolint:errcheck // nobody reads
			return exitOK
		}
		err = usage(program+" --help lists commands and options", "%s", asked.Message)
	}
	f := &failure{error: err, code: exitUntold}
	_ = errors.As(err, &f)                                 // else it has no hint
	fmt.Fprintf(a.stderr, "%s: error: %v\n", program, err) //nolint:errcheck // nobody reads
	if f.hint != "" {
		fmt.Fprintf(a.stderr, "%s: hint: %s\n", program, f.hint) //nolint:errcheck // nobody reads
	}
	return f.code
}

// listCommand prints the rules.
type listCommand struct {
	app     *app
	JSON    bool `long:"json" description:"print a JSON array"`
	Runtime bool `long:"runtime" description:"the rules for container runtimes"`
}

// Execute prints the rules.
func (c *listCommand) Execute([]string) error {
	rules, err := conformance.Rules(conformance.Contract())
	if err != nil {
		return err
	}
	if c.Runtime {
		rules = runtimes.Rules()
	}
	if c.JSON {
		return printJSON(c.app.stdout, rules)
	}
	for _, r := range rules {
		if _, err := fmt.Fprintf(c.app.stdout, "%-6s  %s\n        %s\n", r.Level, r.Name, r.Says); err != nil {
			return err
		}
		for _, s := range r.Sources {
			if _, err := fmt.Fprintf(c.app.stdout, "        - %s\n", s); err != nil {
				return err
			}
		}
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
