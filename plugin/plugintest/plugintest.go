// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugintest tests whether a plugin fulfils the contract of all plugins. A test needs
// three lines:
//
//	func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }
//
//	func TestContract(t *testing.T) {
//		plugintest.Run(t, &Plugin, plugintest.Case{Subject: plugintest.Subject(t, "host-local")})
//	}
//
// Subject reads conformance/subjects/NAME.json. This file describes the plugin of that type, in
// any project; conformance.Subject documents its fields. A test may also write the Subject as a
// Go value.
//
// Run runs every script of conformance/contract in process (plugin.Builtin), for each version of
// the specification. It runs a few of them as a program too (the test binary, started under the
// plugin's name), and all of them if the environment variable PATCHBAY_DRAW is "all". In process it
// adds tests that only Go can do: a fault at every Session.Fault step of ADD, a cancelled context,
// refusal of broken input without a panic, an ADD that is repeated with other values, the mark and the files that the
// plugin declares, and a count of goroutines and file descriptors. It also lets system calls of DEL and GC fail
// (internal/test/nettest/fault).
package plugintest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/spaces"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/fault"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Case is one configuration of a plugin to test.
type Case struct {
	conformance.Subject

	// Delegates are plugins that p may call in process, as if the same binary contained them. When
	// the plugins run as programs, p finds them under their names.
	Delegates []*plugin.Plugin

	// Prepare replaces Subject.Prev; see conformance.Suite.
	Prepare func(t *testing.T, a *conformance.Container) *spec.Result
	// Break replaces Subject.Break. BreakError is a text that the error of CHECK must contain
	// afterwards.
	Break      func(t *testing.T, a *conformance.Container)
	BreakError string

	// NoFaults means that no change of ADD can fail half-way, so faults are not tested.
	NoFaults bool
	// UndoneByDEL means that ADD undoes what another plugin did by that plugin's DEL, which need not restore sysctls.
	UndoneByDEL bool
}

// Main is the TestMain of a plugin's package. If the test binary is started under the name of
// one of the plugins, it runs that plugin. Otherwise it runs the tests with their own network,
// /run and /var/lib (internal/test/nettest). The list of plugins must include the delegates.
func Main(m *testing.M, plugins ...*plugin.Plugin) {
	fault.Ask()
	served = plugins
	name := filepath.Base(os.Args[0])
	for _, p := range plugins {
		if p.Name == name {
			os.Exit(plugin.MainOf(p, plugins))
		}
	}
	nettest.Main(m)
}

// served are the plugins that Main got.
var served []*plugin.Plugin

// unserved returns an error if Main did not get one of the plugins, so that this test binary cannot run as its program.
func unserved(plugins ...*plugin.Plugin) error {
	for _, p := range plugins {
		if !slices.ContainsFunc(served, func(s *plugin.Plugin) bool { return s.Name == p.Name }) {
			return fmt.Errorf("TestMain of this package must call plugintest.Main(m, &Plugin), with each delegate as a further argument; it does not name %s", p.Name)
		}
	}
	return nil
}

// Subject reads a description from conformance/subjects.
func Subject(t testing.TB, name string) conformance.Subject {
	t.Helper()
	s, err := conformance.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

// Run tests in each case whether p fulfils the contract.
func Run(t *testing.T, p *plugin.Plugin, cases ...Case) {
	t.Helper()
	for _, c := range cases {
		if err := unserved(append([]*plugin.Plugin{p}, c.Delegates...)...); err != nil {
			t.Fatal(err)
		}
		c.fill(p)
		name := c.Name
		if name == "" {
			name = p.Name
		}
		t.Run(name, func(t *testing.T) { c.run(t, p) })
	}
}

// fill sets the missing fields of the case from the plugin.
func (c *Case) fill(p *plugin.Plugin) {
	if c.Type == "" {
		c.Type = p.Name
	}
	if c.Kind == "" {
		c.Kind = p.Kind.String()
	}
	if c.MinVersion == "" {
		c.MinVersion = p.MinVersion
	}
}

func (c *Case) run(t *testing.T, p *plugin.Plugin) {
	inProcess := c.builtin(t, p, nil)
	t.Run("in-process", func(t *testing.T) { c.suite(inProcess, nil).Run(t) })
	t.Run("exec", func(t *testing.T) {
		dir := Install(t, append([]*plugin.Plugin{p}, c.Delegates...)...)
		suite := c.suite(&invoke.Exec{}, []string{dir})
		if !draw.All(t) {
			suite = suite.Brief()
		}
		suite.Run(t)
	})
	if !c.NoFaults {
		t.Run("faults", func(t *testing.T) { c.faults(t, p) })
	}
	if !c.Stateless {
		t.Run("removal faults", func(t *testing.T) { c.removalFaults(t, p, inProcess) })
		t.Run("unrecorded", func(t *testing.T) { c.unrecorded(t, p, inProcess) })
	}
	if c.Again && c.Second != nil {
		t.Run("changed", func(t *testing.T) { c.changed(t, inProcess) })
	}
	if p.Marked {
		t.Run("marked", func(t *testing.T) { c.marked(t, inProcess) })
	}
	t.Run("cancelled", func(t *testing.T) { c.cancelled(t, inProcess) })
	t.Run("leaks", func(t *testing.T) { c.leaks(t, inProcess) })
}

// suite returns the contract's tests, for calls in process or by exec. In process, path names a
// directory that does not exist, so that no program is found there.
func (c *Case) suite(inv invoke.Invoker, path []string) conformance.Suite {
	if path == nil {
		path = []string{"/nonexistent/plugintest"}
	}
	return conformance.Suite{
		Subject: c.Subject, Invoker: inv, Path: path,
		Prepare: c.Prepare, Break: c.Break, BreakError: c.BreakError,
	}
}

// builtin returns an Invoker that calls p and its delegates in process.
func (c *Case) builtin(t *testing.T, p *plugin.Plugin, fault func(string) error) invoke.Invoker {
	return &plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession(append([]*plugin.Plugin{p}, c.Delegates...))
		s.Stderr = logWriter{t}
		s.Fault = fault
		return s
	}}
}

// Install links the test binary into a directory under the plugins' names. The directory
// serves as CNI_PATH. The plugins must be those that Main got.
func Install(t testing.TB, plugins ...*plugin.Plugin) (dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, p := range plugins {
		if err := os.Symlink(self, filepath.Join(dir, p.Name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// logWriter sends warnings to the test's log.
type logWriter struct{ t *testing.T }

func (l logWriter) Write(p []byte) (int, error) {
	l.t.Helper()
	l.t.Logf("stderr: %s", p)
	return len(p), nil
}

// cancelled checks that a call whose context has ended does nothing or everything, but never
// half of its work.
func (c *Case) cancelled(t *testing.T, inv invoke.Invoker) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := c.suite(inv, nil).World(t)
	defer w.Close()
	if _, err := w.Call(ctx, spec.Add); !errors.Is(err, context.Canceled) {
		t.Errorf("ADD in a cancelled context returned %v", err)
	}
	if left := w.Left(); len(left) > 0 {
		t.Errorf("ADD in a cancelled context left behind:\n%s", left)
	}
	if _, err := w.Call(t.Context(), spec.Add); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Call(ctx, spec.Del) // the call may do nothing or everything
	if _, err := w.Call(t.Context(), spec.Del); err != nil {
		t.Errorf("DEL after a cancelled one: %v", err)
	}
	if left := w.Left(); len(left) > 0 {
		t.Errorf("DEL after a cancelled one left behind:\n%s", left)
	}
}

// marked checks that an attachment has a link with its mark, as the plugin declares. Without one, `patchbay gc` would take a
// living attachment for a dead one.
func (c *Case) marked(t *testing.T, inv invoke.Invoker) {
	w := c.suite(inv, nil).World(t)
	defer w.Close()
	if _, err := w.Call(t.Context(), spec.Add); err != nil {
		t.Fatal(err)
	}
	a := w.Attachment()
	links, err := spaces.Links(paths.Default().Proc)
	if links[owner.Of(conformance.Network, a.ContainerID, a.IfName).Alias()] == "" {
		t.Errorf("Plugin.Marked is set, and no link has the attachment's mark (unread: %v)", err)
	}
	if _, err := w.Call(t.Context(), spec.Del); err != nil {
		t.Error(err)
	}
}

// leaks counts goroutines and descriptors before and after an ADD and a DEL in process.
func (c *Case) leaks(t *testing.T, inv invoke.Invoker) {
	w := c.suite(inv, nil).World(t)
	defer w.Close()
	c.life(t, w) // the first run opens descriptors that stay open, such as those of Go's poller
	goroutines, fds := runtime.NumGoroutine(), descriptors(t)
	for range 3 {
		c.life(t, w)
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if runtime.NumGoroutine() <= goroutines && descriptors(t) <= fds {
			return
		}
	}
	t.Errorf("goroutines %d -> %d, descriptors %d -> %d", goroutines, runtime.NumGoroutine(), fds, descriptors(t))
}

func (c *Case) life(t *testing.T, w *conformance.World) {
	t.Helper()
	for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Status, spec.Del, spec.GC} {
		if _, err := w.Call(t.Context(), verb); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
