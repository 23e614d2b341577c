// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/jessevdk/go-flags"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/terminal"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// These are the exit codes, which docs/cli.md lists.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitWarnings    = 1   // doctor: warnings only
	exitProblems    = 2   // doctor
	exitUnknown     = 3   // doctor could not run
	exitRun         = 125 // run failed before the command started
	exitNotRunnable = 126 // run's command cannot be executed
	exitNotFound    = 127 // run's command does not exist
	exitSignal      = 128 // this number plus that of the signal that ended run's command, or patchbay itself
)

// failure is an error with an exit code and a hint.
type failure struct {
	err  error
	hint string
	code int
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// hinted adds advice to an error.
func hinted(err error, format string, args ...any) error {
	return &failure{err: err, hint: fmt.Sprintf(format, args...), code: exitFailure}
}

// usage returns an error for a mistake on the command line.
func usage(hint, format string, args ...any) error {
	return &failure{err: fmt.Errorf(format, args...), hint: hint, code: exitUsage}
}

// exit is an error that ends the program with a status and prints no message.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// report prints an error, as text or JSON, and returns the exit status.
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
	if i, ok := a.interrupted(); ok {
		err, f = fmt.Errorf("%w: %w", i, err), &failure{code: exitSignal + int(i.Signal)}
	} else if f.hint == "" {
		err = rootless(a.command(), err)
		f.hint = cmp.Or(hintOf(err), hintFor(err))
	}
	if a.json {
		a.reportJSON(err)
	}
	a.complain(err.Error(), f.hint)
	return f.code
}

// command returns the command that was typed, such as "network create".
func (a *app) command() string {
	if a.parsed == nil || a.parsed.Active == nil {
		return "patchbay"
	}
	var words []string
	for c := a.parsed.Active; c != nil; c = c.Active {
		words = append(words, c.Name)
	}
	return strings.Join(words, " ")
}

// hintOf returns the hint of err, or of an error that err wraps.
func hintOf(err error) string {
	var f *failure
	if errors.As(err, &f) {
		return f.hint
	}
	return ""
}

// reportParse handles the result of parsing: it prints help to standard output, and a mistake
// to standard error.
func (a *app) reportParse(e *flags.Error) int {
	if e.Type == flags.ErrHelp {
		return a.report(a.print(terminal.ActiveHelp(a.parsed, a.width())))
	}
	msg, hint := terminal.Mistake(e), "patchbay --help lists the commands"
	switch {
	case a.parsed == nil || a.parsed.Active == nil:
	case e.Type == flags.ErrCommandRequired: // the library's own text has the commands in backquotes
		msg = "name a command: " + strings.Join(a.below(), ", ")
		hint = "see patchbay " + a.command() + " --help"
	default:
		hint = "see patchbay " + a.command() + " --help"
	}
	a.complain(msg, hint)
	return a.mistake()
}

// mistake returns the exit status for a mistake on the command line.
func (a *app) mistake() int {
	if len(a.args) > 0 && a.args[0] == "doctor" { // for doctor, status 2 means problems
		return exitUnknown
	}
	return exitUsage
}

// below lists the subcommands of the command that was typed.
func (a *app) below() (names []string) {
	c := a.parsed.Active
	for c.Active != nil {
		c = c.Active
	}
	for _, c := range c.Commands() {
		names = append(names, c.Name)
	}
	return names
}

// width returns the width of help texts in columns.
func (a *app) width() int {
	f, ok := a.stdout.(*os.File)
	if !ok {
		f = os.Stdout
	}
	return terminal.Width(f)
}

// reportJSON prints the error object of the CNI specification, as a plugin does.
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
	a.remark("%s %s", a.coloured(red, "error:"), strings.ReplaceAll(msg, "\n", "\n  "))
	if hint != "" {
		a.hint("%s", hint)
	}
}

func (a *app) hint(format string, args ...any) {
	a.remark("%s", a.coloured(dim, "hint: "+fmt.Sprintf(format, args...)))
}

func (a *app) warn(err error) {
	if err != nil {
		a.remark("%s %v", a.coloured(yellow, "warning:"), err)
	}
}

// hintFor returns the usual advice for a common error.
func hintFor(err error) string {
	var missing *fs.PathError
	switch {
	case errors.Is(err, invoke.ErrNotFound):
		return "$CNI_PATH is where plugins are looked for; `patchbay plugin list` shows those that are built in"
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return rootHint
	case errors.Is(err, fs.ErrPermission):
		return refusedHint(effective())
	case spec.ErrorCode(err) == spec.CodeInvalidNetNS, errors.As(err, &missing) && strings.HasPrefix(missing.Path, "/run/netns"):
		return "`ip netns add NAME` makes a namespace at /run/netns/NAME; a process has one at /proc/PID/ns/net"
	}
	return ""
}

// refusedHint says why root, with these effective capabilities as bits, may not do something.
func refusedHint(capabilities uint64) string {
	var lacks []string
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}} {
		if capabilities&(1<<c.bit) == 0 {
			lacks = append(lacks, c.name)
		}
	}
	if len(lacks) > 0 {
		return "root lacks " + strings.Join(lacks, " and ") + " here, as in a container without privileges"
	}
	return "root has CAP_NET_ADMIN and CAP_SYS_ADMIN here: a security module refuses, or a file's attribute (lsattr), or, in a user namespace, it is the host's"
}

// effective returns the effective capabilities of this process, as bits.
func effective() uint64 {
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0 // the kernel refuses even this
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
}

// print writes text to standard output.
func (a *app) print(text string) error {
	if _, err := fmt.Fprint(a.stdout, text); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// printAll works like print. But if the reader of the pipe is gone, it returns an error.
// Otherwise SIGPIPE would end the process before its cleanup.
func (a *app) printAll(text string) error {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGPIPE)
	defer signal.Stop(caught)
	return a.print(text)
}

func (a *app) printf(format string, args ...any) error { return a.print(fmt.Sprintf(format, args...)) }

// printJSON writes v as indented JSON, as plugins write results. If the command fails too, its
// error goes to standard error as text. So standard output stays one document.
func (a *app) printJSON(v any) error {
	a.json = false
	return a.print(indented(v))
}

// show prints v as JSON if --json is given. Otherwise it prints text.
func (a *app) show(v any, text string) error {
	if a.json {
		return a.printJSON(v)
	}
	return a.print(text)
}

// indented encodes v. It panics on an error, because our own types and decoded JSON always can
// be encoded.
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

// rootHint is the hint for a user who is not root.
const rootHint = "sudo; `patchbay demo` runs as any user"

// needRoot returns an error if the user is not root, before the command changes or prints
// anything. It does not check capabilities, because the kernel's own errors say what is missing.
func needRoot(command string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return hinted(fmt.Errorf("%s needs root", command), rootHint)
}

// rootless turns a permission error into one that says that the command needs root. It returns
// other errors unchanged.
func rootless(command string, err error) error {
	if os.Geteuid() == 0 || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return hinted(fmt.Errorf("%s needs root: %w", command, err), rootHint)
}

// These are the colours of a terminal.
const (
	red    = "31"
	yellow = "33"
	dim    = "2"
)

// coloured returns text for standard error. If standard error is a terminal and the user has not
// disabled colours (https://no-color.org), coloured adds a colour.
func (a *app) coloured(colour, text string) string {
	if a.getenv == nil || a.getenv("NO_COLOR") != "" || a.getenv("TERM") == "dumb" || !terminalOf(a.stderr) {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// terminalOf reports whether w is a terminal.
func terminalOf(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// table formats text in columns that are two spaces apart.
type table struct {
	rows   [][]string
	widths []int // widths of the columns; the last cell of a row is not padded
}

// newTable returns a table. If titles are given, they are its first line.
func newTable(head ...string) *table {
	t := new(table)
	if len(head) > 0 {
		t.row(head...)
	}
	return t
}

func (t *table) row(cells ...string) {
	cells = terminal.PrintableCells(cells)
	t.rows = append(t.rows, cells)
	for i := 0; i < len(cells)-1; i++ {
		if i == len(t.widths) {
			t.widths = append(t.widths, 0)
		}
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cells[i]))
	}
}

// String formats the table, without trailing spaces.
func (t *table) String() string {
	var out strings.Builder
	for _, cells := range t.rows {
		line := ""
		for i, c := range cells {
			line += c
			if i < len(cells)-1 {
				line += strings.Repeat(" ", t.widths[i]+2-utf8.RuneCountInString(c))
			}
		}
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}
