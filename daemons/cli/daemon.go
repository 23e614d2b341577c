// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package daemon is the command line of patchbayd: one subcommand per service.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jessevdk/go-flags"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/terminal"
)

// command describes one command for the parser.
type command struct {
	name, short, long string
	data              any // a struct with the flags and the method Execute
}

// app holds what all commands share.
type app struct {
	ctx    context.Context
	log    io.Writer
	parsed *flags.Command // the whole command line; its field Active leads to the command that was typed
}

// about is the text before the list of commands.
const about = `patchbayd runs Patchbay's services. Each command runs one service in the
foreground. The service logs to standard error, and SIGTERM ends it.`

// Main runs a command and returns the exit status.
func Main(args []string, log io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	a := &app{ctx: ctx, log: log}
	p, err := a.parser()
	if err != nil {
		return a.report(err)
	}
	a.parsed = p.Command
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case terminal.AsksVersion(args):
		args = append([]string{"version"}, args[1:]...)
	}
	_, err = p.ParseArgs(longFlags(args))
	if parse := (*flags.Error)(nil); errors.As(err, &parse) && !isHelp(err) {
		err = usageError{errors.New(terminal.Mistake(parse))}
	}
	if args[0] == "docker" && err != nil && !isHelp(err) {
		a.serveFailure(err)
	}
	return a.report(err)
}

// parser returns the parser of the command line.
func (a *app) parser() (*flags.Parser, error) {
	p := flags.NewNamedParser("patchbayd", flags.HelpFlag|flags.PassDoubleDash)
	p.ShortDescription = "the services of Patchbay"
	p.LongDescription = about
	p.Usage = "COMMAND"
	for _, c := range []command{
		{"dhcp", "keep DHCP leases for the plugin dhcp", dhcpLong, &dhcpCommand{app: a}},
		{"docker", "make CNI networks Docker's", dockerLong, &dockerCommand{app: a}},
		{"hosts", "make CNI networks span many hosts", hostsLong, newHostsCommand(a)},
		{"node", "prepare a Kubernetes node for its pods", nodeLong, newNodeCommand(a)},
		{"plugins", "run the calls of plugins in a process that stays", pluginsLong, &pluginsCommand{}},
		{"trace", "send the packet of patchbay trace", traceLong, &traceCommand{}},
		{"completion", "print a shell completion script", completionLong, &completionCommand{}},
		{"man", "print the man page", manLong, &manCommand{app: a}},
		{"help", "print the help of a command", helpLong, &helpCommand{app: a}},
		{"version", "print the version", versionLong, &versionCommand{}},
	} {
		added, err := p.AddCommand(c.name, c.short, c.long, c.data)
		if err != nil {
			return nil, err
		}
		added.SubcommandsOptional = true // without a subcommand the service itself runs
	}
	return p, nil
}

// longFlags changes -pidfile and similar flags to --pidfile, because the reference's daemon
// accepts long names after one dash. No command has a flag of one letter except -h.
func longFlags(args []string) []string {
	out := make([]string, 0, len(args))
	for _, arg := range args {
		if len(arg) > 2 && arg[0] == '-' && arg[1] >= 'a' && arg[1] <= 'z' {
			arg = "-" + arg
		}
		switch arg { // the only boolean flag
		case "--broadcast=true":
			arg = "--broadcast"
		case "--broadcast=false":
			continue
		}
		out = append(out, arg)
	}
	return out
}

// report prints an error and returns the exit status.
func (a *app) report(err error) int {
	var mistake usageError
	var ended statusError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		if ended.error != nil {
			a.print("error", ended.error)
		}
		return ended.status
	case isHelp(err):
		fmt.Fprint(os.Stdout, terminal.ActiveHelp(a.parsed, terminal.Width(os.Stdout))) //nolint:errcheck // help
		return 0
	case errors.As(err, &mistake):
		a.print("error", err)
		a.print("hint", errors.New(strings.Join(append([]string{"patchbayd"}, a.typed()...), " ")+" --help"))
		return exitUsage
	}
	a.print("error", err)
	return 1
}

// exitUsage is the status of a mistake on the command line.
const exitUsage = 2

// usageError is a mistake on the command line that the library does not detect.
type usageError struct{ error }

// statusError is the end of a command with a status of its own. Without an error nothing is printed.
type statusError struct {
	error
	status int
}

// Error returns the text of the error, if there is one.
func (e statusError) Error() string {
	if e.error == nil {
		return ""
	}
	return e.error.Error()
}

// noArgs returns an error if a command without arguments gets some. A service that ignored a word
// would not do what the user meant.
func noArgs(args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// typed returns the words of the command that was typed, without its flags.
func (a *app) typed() (words []string) {
	if a.parsed == nil {
		return nil
	}
	for c := a.parsed.Active; c != nil; c = c.Active {
		words = append(words, c.Name)
	}
	return words
}

func isHelp(err error) bool {
	var usage *flags.Error
	return errors.As(err, &usage) && usage.Type == flags.ErrHelp
}

func (a *app) print(kind string, err error) {
	fmt.Fprintf(a.log, "patchbayd: %s: %v\n", kind, err) //nolint:errcheck // there is nowhere to report it
}

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
specification that it supports.`

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

// lock creates a file if it is missing, and takes its lock. It waits for wait at most; 0 means
// that it does not wait. If the lock stays taken, the error wraps unix.EWOULDBLOCK.
func lock(ctx context.Context, path string, wait time.Duration) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, unix.EWOULDBLOCK)
	defer cancel()
	return durable.Lock(ctx, path)
}

// lockState makes sure that only one process uses a state directory. The directory is named after
// the service.
func lockState(ctx context.Context, dir string, wait time.Duration) (unlock func(), err error) {
	return lockOf(ctx, dir, "lock", wait)
}

// lockAgent makes the state directory of an agent, and makes sure that only one process uses it.
func lockAgent(ctx context.Context, dir string) (unlock func(), err error) {
	if err := durable.MakeDir(filepath.Dir(dir), filepath.Base(dir)); err != nil {
		return nil, err
	}
	return lockState(ctx, dir, 0)
}

func lockOf(ctx context.Context, dir, file string, wait time.Duration) (unlock func(), err error) {
	unlock, err = lock(ctx, filepath.Join(dir, file), wait)
	if errors.Is(err, unix.EWOULDBLOCK) || ctx.Err() != nil && err != nil {
		err = fmt.Errorf("another patchbayd %s runs: %w", filepath.Base(dir), err)
	}
	return unlock, err
}

// If no driver runs, gc works on Docker's state itself, which may take minutes. A driver that
// starts meanwhile must not answer Docker with errors. So a driver first takes a second lock: gc
// polls this lock, and stops when a driver has it.
const (
	driverLock  = "driver"
	gcPollEvery = 100 * time.Millisecond // how often gc polls the lock
	pollTime    = time.Second            // longer than one poll takes
	gcTime      = 30 * time.Second       // longer than gc takes to stop; meanwhile calls wait at the socket
)

// lockDriver locks the driver's lock and the state. It waits for gc, but not for
// another driver.
func lockDriver(ctx context.Context, dir string) (unlock func(), err error) {
	only, err := lockOf(ctx, dir, driverLock, pollTime)
	if err != nil {
		return nil, err
	}
	state, err := lockState(ctx, dir, gcTime)
	if err != nil {
		only()
		return nil, err
	}
	return func() { state(); only() }, nil
}

// untilDriver returns a context that is cancelled when a driver starts. Its cause wraps
// unix.EWOULDBLOCK.
func untilDriver(ctx context.Context, dir string) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for clock.Sleep(ctx, gcPollEvery) {
			looked, err := lock(ctx, filepath.Join(dir, driverLock), 0)
			if err != nil {
				cancel(err)
				return
			}
			looked()
		}
	}()
	return ctx, cancel
}
