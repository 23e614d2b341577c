// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/spec"
)

// Main runs p as a program and returns the exit status: 0, or 1 with an error object on standard
// output. If CNI_COMMAND is not set, Main describes the program on standard error and returns 0.
// The tests of packages run plugins in this way.
func Main(p *Plugin) int { return MainOf(p, []*Plugin{p}) }

// MainOf works like Main for a program with several plugins. The plugins may call those in the
// list all as delegates within the process.
//
// MainOf installs no signal handler. A handler would start two threads, which costs 0.3 ms per
// call. DEL and GC treat a terminated plugin like a killed one.
//
// A plugin does one thing after another, so one P (the Go scheduler's processor) is enough. More
// Ps wake threads that search for work, which costs an eighth of the CPU time of an ADD. To set
// GOMAXPROCS, Go stops all goroutines once and frees what the other Ps had, at 50 page faults; a
// VERSION and a call of an IPAM plugin are too short for this to pay off.
func MainOf(p *Plugin, all []*Plugin) int { return Continue(p, all, Begun{}) }

// Begun is what a program did with its call before it called Continue.
type Begun struct {
	// Stdin is standard input, with what the program has read of it. Nil means os.Stdin.
	Stdin io.Reader

	// Lost means that another process took the call and may have done a part of it. An ADD fails with this
	// error, because what is there may be of this ADD or of an earlier one. Other verbs are done again.
	Lost error
}

// Continue works like MainOf for a program that has begun a call in its own way.
func Continue(p *Plugin, all []*Plugin, b Begun) int {
	if status, ok := helper(p, os.Args, os.Stderr); ok {
		return status
	}
	if os.Getenv("CNI_COMMAND") != string(spec.Version) && p.Kind != IPAM {
		runtime.GOMAXPROCS(1)
	}
	if b.Lost != nil && os.Getenv("CNI_COMMAND") == string(spec.Add) {
		return report(p, b.Lost, Stdio{Stdout: os.Stdout, Stderr: os.Stderr})
	}
	if b.Stdin == nil {
		b.Stdin = os.Stdin
	}
	s := NewSession(all)
	s.Self, s.last = SelfPath, true
	return Complete(context.Background(), p, s, Stdio{Getenv: os.Getenv, Stdin: b.Stdin, Stdout: stdout(), Stderr: os.Stderr})
}

// Complete works like Run. It also closes the session, and does what remains to be done after a call.
func Complete(ctx context.Context, p *Plugin, s *Session, io Stdio) int {
	defer s.Close()
	status := Run(ctx, p, s, io)
	if status == 0 && io.Getenv("PATCHBAY_SWEEP") != "off" {
		s.Close() // releases the locks
		s.afterwards()
	}
	return status
}

// stdout returns standard output under another descriptor number. If the runtime has ended, a
// write to descriptor 1 would kill a Go program before it could undo anything.
func stdout() *os.File {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.Stdout
	}
	return os.NewFile(uintptr(fd), "standard output")
}

// Stdio holds the environment and the standard files of the process.
type Stdio struct {
	Getenv func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// Answer, if set, gets the exit status and the output instead of Stdout.
	Answer func(status int, out []byte) error
}

// write writes the output of the call.
func (s Stdio) write(status int, out []byte) error {
	if s.Answer != nil {
		return s.Answer(status, out)
	}
	_, err := s.Stdout.Write(out)
	return err
}

// Run works like Main, but gets the environment and the standard files from its caller.
func Run(ctx context.Context, p *Plugin, s *Session, io Stdio) int {
	if io.Getenv("CNI_COMMAND") == "" {
		about(p, io.Stderr)
		return 0
	}
	err := call(ctx, p, s, io)
	if err == nil {
		return 0
	}
	return report(p, err, io)
}

// report writes an error and returns the exit status.
func report(p *Plugin, err error, io Stdio) int {
	if werr := io.write(1, errorJSON(err)); werr != nil {
		fmt.Fprintf(io.Stderr, "%s: write error to stdout: %v: %v\n", p.Name, werr, err) //nolint:errcheck // there is nowhere to report it
	}
	return 1
}

// mostInput is the size of the longest configuration that a plugin reads, in bytes. 64,512 published ports take
// less than a tenth of it.
const mostInput = 64 << 20

func call(ctx context.Context, p *Plugin, s *Session, stdio Stdio) error {
	c, err := spec.ParseEnviron(stdio.Getenv)
	if err != nil {
		return err
	}
	if c.Config, err = io.ReadAll(io.LimitReader(stdio.Stdin, mostInput+1)); err != nil {
		return spec.Errorf(spec.CodeIO, "error reading from stdin: %w", err)
	}
	if len(c.Config) > mostInput {
		return spec.Errorf(spec.CodeDecoding, "standard input is longer than %d bytes", mostInput)
	}
	out, err := serve(ctx, p, c, s, true)
	if err != nil {
		return err
	}
	if err = stdio.write(0, out); err != nil {
		err = spec.Errorf(spec.CodeIO, "error writing the result to stdout: %w", err)
		return spec.Join(err, detach(context.WithoutCancel(ctx), p, c, s, out))
	}
	return nil
}

// detach rolls back an ADD whose result could not be written. It calls DEL, because the queued
// work is committed already, and the undo stack cannot revert that. The DEL has a session of its own,
// because that of the ADD holds its locks until it is closed.
func detach(ctx context.Context, p *Plugin, c *spec.Call, s *Session, out []byte) error {
	if c.Verb != spec.Add {
		return nil
	}
	s.Close()
	s = s.Fork()
	defer s.Close()
	del := *c
	del.Verb = spec.Del
	result, err := spec.ParseResult(out, "")
	if err == nil {
		del.Config, err = spec.WithPrevResult(c.Config, result)
	}
	if err != nil {
		del.Config = c.Config // DEL works without prevResult
	}
	if _, err := serve(ctx, p, &del, s, true); err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}

func about(p *Plugin, w io.Writer) {
	fmt.Fprintf(w, "CNI %s plugin (patchbay): %s\nCNI protocol versions supported: %s\n", //nolint:errcheck // a banner
		p.Name, p.About, strings.Join(p.Versions(), ", "))
}

// errorJSON returns the error object, indented like a result.
func errorJSON(err error) []byte {
	e := *spec.AsError(err)
	if e.CNIVersion == "" {
		e.CNIVersion = spec.Current
	}
	data, merr := json.MarshalIndent(&e, "", "    ")
	if merr != nil {
		return []byte(`{"code":999,"msg":"error cannot be encoded"}`)
	}
	return data
}

// versionResult answers VERSION. As the specification requires, the answer has the version of the
// request and lists the versions that the plugin supports.
func versionResult(ctx context.Context, p *Plugin, c *spec.Call, s *Session) ([]byte, error) {
	var in struct {
		CNIVersion string `json:"cniVersion"`
	}
	if len(c.Config) > 0 {
		if err := lightjson.Unmarshal(c.Config, &in); err != nil {
			return nil, spec.Errorf(spec.CodeDecoding, "decode version request: %w", err)
		}
	}
	if in.CNIVersion == "" {
		in.CNIVersion = spec.Current
	}
	data, err := lightjson.Marshal(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{in.CNIVersion, p.versionsFor(ctx, c, s)})
	return append(data, '\n'), err
}

// versionsFor returns the supported versions that the configuration does not exclude.
func (p *Plugin) versionsFor(ctx context.Context, c *spec.Call, s *Session) []string {
	versions := p.Versions()
	if p.VersionsFor == nil || len(c.Config) == 0 {
		return versions
	}
	narrow := p.VersionsFor(ctx, s, c)
	if narrow == nil {
		return versions
	}
	return slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return !slices.Contains(narrow, v) })
}

// Builtin calls plugins within this process, each call in a new session, with this process as the
// runtime. Builtin implements invoke.Invoker, as invoke.Exec does for other programs.
type Builtin struct {
	NewSession func() *Session
}

// Invoke runs the call. If the plugin is not in this process, Invoke executes a program.
func (b *Builtin) Invoke(ctx context.Context, pluginType string, c *spec.Call) ([]byte, error) {
	s := b.NewSession()
	defer s.Close()
	s.inRuntime = true
	return s.invoke(ctx, pluginType, c, true)
}

// helperArg is the argument with which a plugin's program runs its Helper. Runtimes never pass it.
const helperArg = "__helper"

// HelperArgs returns the arguments of a process that runs a plugin's Helper. The first argument
// is the program's name; the program is Session.Self.
func HelperArgs(p string, args ...string) []string {
	return append([]string{p, helperArg}, args...)
}

// helper runs a Helper if the process was started with helperArg.
func helper(p *Plugin, args []string, stderr io.Writer) (status int, ok bool) {
	if p.Helper == nil || len(args) < 2 || args[1] != helperArg {
		return 0, false
	}
	if err := p.Helper(args[2:]); err != nil {
		fmt.Fprintln(stderr, err) //nolint:errcheck // there is nowhere to report it
		return 1, true
	}
	return 0, true
}

// SelfPath is the path of the running program. It leads there even if the program's file was
// replaced. If the program's main function calls Main, MainOf or Continue, SelfPath is its Session.Self.
const SelfPath = "/proc/self/exe"
