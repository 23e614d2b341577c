// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of patchbay, one file per command.
//
// A command is a struct whose fields are its flags and whose Execute does the work
// (docs/adr/0011-command-line-library.md). Standard output carries only data; errors go to
// standard error as `patchbay: error: ...`, and advice as `patchbay: hint: ...`. The exit
// codes are in docs/cli.md.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/terminal"
	"github.com/patchbay-net/patchbay/plugin"
)

// app is the state of the process that every command shares.
type app struct {
	ctx     context.Context
	args    []string
	getenv  func(string) string
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
	paths   paths.Paths
	plugins []*plugin.Plugin
	json    bool           // set by a command's --json: errors are JSON too
	verbose bool           // set by a command's --verbose: report every call of a plugin
	parsed  *flags.Command // the whole command line; its field Active leads to the command that was typed
	after   func(time.Duration, func()) (stop func() bool)
	settle  time.Duration // gc.Options.SettleTime
}

// Main runs the command line of this process and returns the exit status. plugins lists the
// plugins that may run inside this process.
func Main(plugins []*plugin.Plugin) int {
	return newApp(plugins).main()
}

func newApp(plugins []*plugin.Plugin) *app {
	return &app{
		ctx:     context.Background(),
		args:    os.Args[1:],
		getenv:  os.Getenv,
		stdin:   os.Stdin,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		paths:   paths.Default(),
		plugins: plugins,
		after:   after,
	}
}

// main parses the command line and runs the command. An interrupt cancels the context, so that
// an ADD in progress is undone before the process ends.
func (a *app) main() int {
	if status, called := a.netavark(); called {
		return status
	}
	defer a.interruptible()()
	switch {
	case len(a.args) == 0:
		a.args = []string{"--help"}
	case terminal.AsksVersion(a.args):
		a.args[0] = "version"
	}
	p, err := a.parser()
	if err != nil {
		return a.report(err)
	}
	a.parsed = p.Command
	_, err = p.ParseArgs(a.args)
	return a.report(err)
}

// command describes one command for the parser.
type command struct {
	name, short, long string
	data              any // a struct with the flags and the method Execute
	passThrough       bool
}

// parser builds the parser from the command table.
func (a *app) parser() (*flags.Parser, error) {
	p := flags.NewNamedParser("patchbay", flags.HelpFlag|flags.PassDoubleDash)
	p.ShortDescription = "every container, any network"
	p.LongDescription = about
	p.Usage = usageLine
	p.CommandHandler = a.execute
	var errs []error
	for _, c := range a.commands() {
		cmd, err := p.AddCommand(c.name, c.short, c.long, c.data)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		cmd.PassAfterNonOption = c.passThrough
	}
	return p, errors.Join(errs...)
}

// execute runs the command that was typed.
func (a *app) execute(c flags.Commander, args []string) error {
	typed := a.parsed.Active
	for typed.Active != nil {
		typed = typed.Active
	}
	given := func(flag string) bool {
		o := typed.FindOptionByLongName(flag)
		return o != nil && o.Value() == true
	}
	a.json, a.verbose = given("json"), given("verbose")
	if len(args) > 0 && !typed.PassAfterNonOption { // a command accepts further arguments only if it passes them on
		return &failure{err: fmt.Errorf("unexpected argument %q", args[0]), code: a.mistake()}
	}
	return c.Execute(args)
}

// usageLine is the placeholder for the command and its arguments in the line "Usage:".
const usageLine = "COMMAND"

// about is the text before the list of commands, in the help and in the man page.
const about = `Patchbay gives containers their networks. It is a runtime for the Container
Network Interface, all its plugins, and the tools around them, in one file.

  patchbay demo                           prove that networking works here
  patchbay run -p 8080:80 -- nginx        a command in its own namespace
  patchbay add mynet /run/netns/blue      what a container runtime does

Networks are read from $NETCONFPATH (/etc/cni/net.d). If there are none, a
built-in dual stack bridge called "patchbay" is used.`

// commands returns all commands, in the order of the help.
func (a *app) commands() []command {
	return []command{
		{name: "run", short: "run a command attached to a network", long: runLong, data: &runCommand{app: a}, passThrough: true},
		{name: "demo", short: "prove that networking works on this machine", long: demoLong, data: &demoCommand{app: a}},
		{name: "add", short: "attach a namespace to a network (ADD)", long: addLong, data: &addCommand{attachFlags{target: target{app: a}}}},
		{name: "del", short: "detach a namespace from a network (DEL)", long: delLong, data: &delCommand{attachFlags{target: target{app: a}}}},
		{name: "check", short: "compare an attachment with the kernel (CHECK)", long: checkLong, data: &checkCommand{target: target{app: a}}},
		{name: "gc", short: "show or remove what dead containers left (GC)", long: gcLong, data: &gcCommand{app: a}},
		{name: "status", short: "check whether a network can take containers (STATUS)", long: statusLong, data: &statusCommand{app: a}},
		{name: "ps", short: "list attachments and where they live", long: psLong, data: &psCommand{app: a}},
		{name: "inspect", short: "print all that is known about an attachment", long: inspectLong, data: &inspectCommand{app: a}},
		{name: "map", short: "draw the networks of this node, for a browser", long: mapLong, data: &mapCommand{app: a}},
		{name: "docker", short: "manage the driver of Docker's networks", long: dockerLong, data: &dockerCommand{app: a}, passThrough: true},
		{name: "network", short: "create, remove, list and validate networks", long: networkLong, data: newNetworkCommand(a)},
		{name: "explain", short: "print what an ADD would do", long: explainLong, data: &explainCommand{app: a}},
		{name: "why", short: "explain what network policies do with a packet", long: whyLong, data: &whyCommand{app: a}},
		{name: "trace", short: "send a packet, and show where it ends and what mends it", long: traceLong, data: &traceCommand{app: a}},
		{name: "drops", short: "show packets that network policies dropped", long: dropsLong, data: &dropsCommand{app: a}},
		{name: "flows", short: "show who talks to whom on this node", long: flowsLong, data: &flowsCommand{app: a}},
		{name: "doctor", short: "find what is wrong on this node", long: doctorLong, data: &doctorCommand{app: a}},
		{name: "repair", short: "restore what is missing on the host", long: repairLong, data: &repairCommand{app: a}},
		{name: "convert", short: "print a conflist with its plugins in one process, or separate", long: convertLong, data: &convertCommand{app: a}},
		{name: "plugin", short: "list the plugins and their fields", long: pluginLong, data: &pluginCommand{pluginListCommand{app: a}, pluginHelpCommand{app: a}}},
		{name: "install", short: "install the plugins into a directory", long: installLong, data: &installCommand{app: a}},
		{name: "help", short: "print the help of a command", long: helpLong, data: &helpCommand{app: a}},
		{name: "version", short: "print the version", long: versionLong, data: &versionCommand{app: a}},
		{name: "completion", short: "print a shell completion script", long: completionLong, data: &completionCommand{app: a}},
		{name: "man", short: "print the man page", long: manLong, data: &manCommand{app: a}},
	}
}

// interrupted is the signal that ended the context.
type interrupted struct{ syscall.Signal }

func (i interrupted) Error() string { return "interrupted (" + i.String() + ")" }

// interruptible cancels the context at SIGINT or SIGTERM, with the signal as the cause. Until
// stop is called, a second signal does nothing. So it cannot interrupt the cleanup.
func (a *app) interruptible() (stop func()) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		if s, ok := (<-signals).(syscall.Signal); ok {
			cancel(interrupted{s})
		}
	}()
	a.ctx = ctx
	return func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}

// interrupted returns the signal that cancelled the context, if one did.
func (a *app) interrupted() (i interrupted, ok bool) {
	if a.ctx == nil { // some tests call report without a running command
		return i, false
	}
	return i, errors.As(context.Cause(a.ctx), &i)
}
