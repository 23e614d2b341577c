// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/handover"
	"github.com/patchbay-net/patchbay/paths"
	"github.com/patchbay-net/patchbay/spec"
)

// ResidentArg is the only argument of a program that runs the calls of its plugin processes.
const ResidentArg = "__resident"

// Resident runs the calls of this program's plugin processes, until ctx ends or another file takes the
// place of the program. The plugin processes must have been linked with the routine of
// internal/handover. Resident must be the first thing that the process does.
func Resident(ctx context.Context, all []*Plugin, log func(string, ...any)) error {
	return handover.Serve(ctx, runner(all), log)
}

// runner implements handover.Runner.
type runner []*Plugin

// busAddress is where the D-Bus library looks for firewalld, in the environment of the process.
const busAddress = "DBUS_SYSTEM_BUS_ADDRESS"

func (r runner) Runs(c *handover.Call) bool {
	return c.Getenv("CNI_COMMAND") != "" && c.Getenv(busAddress) == os.Getenv(busAddress) && find(r, filepath.Base(c.Name)) != nil &&
		!slices.ContainsFunc(c.Env, private) && !escaped(string(c.Input)) && !private(strings.ReplaceAll(string(c.Input), `\/`, "/"))
}

// escaped reports whether a configuration may spell characters of a path as numbers (\u002f).
func escaped(text string) bool { return strings.Contains(text, `\u`) }

// private reports whether a text may have a path to a descriptor of the plugin process, such as
// /proc/self/fd/3 for its network namespace. The server would open its own descriptor, which may be the
// namespace of another container. The answer may be yes for a harmless path: then the plugin process runs
// the call.
func private(text string) bool {
	return strings.Contains(text, "self/") || strings.Contains(text, "/dev/fd") || strings.Contains(text, "/dev/std")
}

func (r runner) Run(ctx context.Context, c *handover.Call) (status int) {
	if c.Parent == 0 {
		c.Parent = -1 // unknown; Session takes 0 for the parent of this process
	}
	s := NewSession(r)
	s.Paths, s.Self, s.Stderr, s.Env, s.Caller = paths.From(c.Getenv), SelfPath, &c.Stderr, c.Env, c.Parent
	answer := func(status int, out []byte) error {
		s.Close() // the end of a process would release its locks before the runtime goes on
		return c.Answer(status, out)
	}
	return complete(ctx, find(r, filepath.Base(c.Name)), s, Stdio{
		Getenv: c.Getenv, Stdin: bytes.NewReader(c.Input), Stderr: &c.Stderr, answer: answer,
	})
}

// lostCall is the error of an ADD whose server died. The ADD is not repeated, and there is no DEL: what is
// there may be of this ADD or of an earlier one, and a DEL would remove the earlier one, too.
func lostCall() error {
	return spec.Errorf(spec.CodeTryAgain, "the process that ran this ADD (patchbayd plugins) ended without an answer").
		WithDetails("a DEL removes what the ADD has left; then try again")
}
