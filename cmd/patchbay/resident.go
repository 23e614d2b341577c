// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/patchbay-net/patchbay/internal/handover"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// This file is the only door to internal/handover: a program that others build with package plugin has neither
// the routine nor the server (docs/resident.md).

// begun returns what the entry routine did with the call of this process.
func begun() plugin.Begun {
	b := plugin.Begun{Stdin: handover.Stdin()}
	if handover.Lost() {
		b.Lost = spec.Errorf(spec.CodeTryAgain, "the process that ran this ADD (patchbayd plugins) ended without an answer").
			WithDetails("a DEL removes what the ADD has left; then try again")
	}
	return b
}

// resident runs the calls of plugin processes until a signal ends it or another file takes the place of the
// program, and returns the exit status. `patchbayd plugins` executes the program for this. The caller is locked
// to the first thread, which handover.Serve needs.
func resident() int {
	// A write to a closed log must not end the server.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	logger := log.New(os.Stderr, "", log.LstdFlags)
	if err := handover.Serve(ctx, runner{}, logger.Printf); err != nil {
		logger.Print(err)
		return 1
	}
	return 0
}

// runner implements handover.Runner.
type runner struct{}

// busAddress is where the D-Bus library looks for firewalld, in the environment of the process.
const busAddress = "DBUS_SYSTEM_BUS_ADDRESS"

func (runner) Runs(c *handover.Call) bool {
	return c.Getenv("CNI_COMMAND") != "" && c.Getenv(busAddress) == os.Getenv(busAddress) && all.Find(filepath.Base(c.Name)) != nil &&
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

func (runner) Run(ctx context.Context, c *handover.Call) (status int) {
	if c.Parent == 0 {
		c.Parent = -1 // unknown; Session takes 0 for the parent of this process
	}
	s := plugin.NewSession(all.Plugins())
	s.Paths, s.Self, s.Stderr, s.Env, s.Caller = paths.From(c.Getenv), plugin.SelfPath, &c.Stderr, c.Env, c.Parent
	answer := func(status int, out []byte) error {
		s.Close() // the end of a process would release its locks before the runtime goes on
		return c.Answer(status, out)
	}
	return plugin.Complete(ctx, all.Find(filepath.Base(c.Name)), s, plugin.Stdio{
		Getenv: c.Getenv, Stdin: bytes.NewReader(c.Input), Stderr: &c.Stderr, Answer: answer,
	})
}
