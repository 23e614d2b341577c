// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// The exit codes (docs/cli.md).
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitWarnings    = 1   // doctor: warnings only
	exitProblems    = 2   // doctor
	exitUnknown     = 3   // doctor could not be run as asked
	exitRun         = 125 // run failed before the command started
	exitNotRunnable = 126 // run's command cannot be executed
	exitNotFound    = 127 // run's command does not exist
	exitSignal      = 128 // and the number of the signal that ended run's command
)

// failure is an error with an exit code and a hint.
type failure struct {
	err  error
	hint string
	code int
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// hinted adds what to do about an error.
func hinted(err error, format string, args ...any) error {
	return &failure{err: err, hint: fmt.Sprintf(format, args...), code: exitFailure}
}

// usage is a mistake on the command line.
func usage(hint, format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), hint: hint, code: exitUsage}
}

// exit ends the program with a status and says nothing more.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// report writes an error where it belongs and returns the exit status.
func (a *app) report(err error) int {
	var parse *flags.Error
	var status exit
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &parse):
		return a.reportParse(parse)
	}
	f := &failure{code: exitFailure}
	errors.As(err, &f)
	if a.json {
		a.reportJSON(err)
	}
	a.complain(err.Error(), cmp.Or(f.hint, hintFor(err)))
	return f.code
}

// reportParse prints help as data, and a mistake as an error.
func (a *app) reportParse(e *flags.Error) int {
	if e.Type == flags.ErrHelp {
		return a.report(a.print(tidy(strings.TrimRight(e.Message, "\n") + "\n")))
	}
	hint := "patchbay --help lists the commands"
	if len(a.args) > 0 && !strings.HasPrefix(a.args[0], "-") && e.Type != flags.ErrUnknownCommand {
		hint = "see patchbay " + a.args[0] + " --help"
	}
	a.complain(e.Message, hint)
	if len(a.args) > 0 && a.args[0] == "doctor" { // its 2 means something else
		return exitUnknown
	}
	return exitUsage
}

// tidy takes the library's word for "any command" out where a command is named.
func tidy(text string) string {
	text = strings.ReplaceAll(text, "patchbay "+usageLine+" <command>", "patchbay "+usageLine)
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if strings.TrimSpace(line) != "patchbay "+usageLine && !strings.Contains(line, `\fBpatchbay\fP`) {
			lines[i] = strings.Replace(line, "patchbay "+usageLine+" ", "patchbay ", 1)
		}
	}
	return strings.Join(lines, "")
}

// reportJSON prints the specification's error object, as a plugin does.
func (a *app) reportJSON(err error) {
	e := *spec.AsError(err)
	if e.CNIVersion == "" {
		e.CNIVersion = spec.Current
	}
	if err := a.printJSON(&e); err != nil {
		a.complain(err.Error(), "")
	}
}

func (a *app) complain(msg, hint string) {
	fmt.Fprintf(a.stderr, "patchbay: error: %s\n", strings.ReplaceAll(msg, "\n", "\n  ")) //nolint:errcheck // nobody is left to tell
	if hint != "" {
		a.hint("%s", hint)
	}
}

func (a *app) hint(format string, args ...any) {
	fmt.Fprintf(a.stderr, "patchbay: hint: "+format+"\n", args...) //nolint:errcheck // a remark
}

func (a *app) warn(err error) {
	if err != nil {
		fmt.Fprintf(a.stderr, "patchbay: warning: %v\n", err) //nolint:errcheck // a remark
	}
}

// hintFor knows what usually helps.
func hintFor(err error) string {
	var missing *fs.PathError
	switch {
	case errors.Is(err, invoke.ErrNotFound):
		return "$CNI_PATH is where plugins are looked for; `patchbay plugin list` shows those that are built in"
	case errors.Is(err, fs.ErrPermission):
		return "this needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN); `patchbay demo` runs as any user"
	case spec.ErrorCode(err) == spec.CodeInvalidNetNS, errors.As(err, &missing) && strings.HasPrefix(missing.Path, "/run/netns"):
		return "`ip netns add NAME` makes a namespace at /run/netns/NAME; a process has one at /proc/PID/ns/net"
	}
	return ""
}

// print writes text to standard output.
func (a *app) print(text string) error {
	if _, err := fmt.Fprint(a.stdout, text); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

func (a *app) printf(format string, args ...any) error { return a.print(fmt.Sprintf(format, args...)) }

// printJSON writes v indented, as plugins write results.
func (a *app) printJSON(v any) error { return a.print(indented(v)) }

// printOnly is printJSON for output that stands beside an error: standard output
// stays one document.
func (a *app) printOnly(v any) error {
	a.json = false
	return a.printJSON(v)
}

// indented encodes what always encodes: our own types and what was JSON before.
func indented(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	if err := enc.Encode(v); err != nil {
		panic("patchbay: encode output: " + err.Error())
	}
	return b.String()
}
