// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/report"
)

const initLong = `Call a plugin in new namespaces, and print what it is as a subject: the file with
which run calls it. Read it, and add configurations that the plugin must refuse.`

const runLong = `Run every rule on one plugin, or on each plugin of a directory. The configuration is a
subject (see init) or a network configuration with the plugin in it. Without one, the
suite knows the reference plugins. With --dir, --config is a directory of subjects.`

// which names a program and its configuration.
type which struct {
	Plugin string   `long:"plugin" value-name:"FILE" description:"the program"`
	Config string   `long:"config" value-name:"FILE" description:"a subject, or a network configuration"`
	Path   []string `long:"path" value-name:"DIR" description:"a directory of plugins that the plugin calls; by default those of CNI_PATH"`
	Beside string   `long:"beside" value-name:"CMD" description:"a shell command that runs in the plugin's namespaces, such as its daemon; the plugin is called when CMD has printed a line"`
}

// target finds the program.
func (w *which) target() (target, error) {
	file, err := filepath.Abs(w.Plugin)
	if err != nil {
		return target{}, err
	}
	if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
		return target{}, usage("", "%s is no program: %v", w.Plugin, cmp.Or(err, errors.New("it is no file")))
	}
	s, ask, err := read(w.Config, filepath.Base(file))
	return target{file, s, ask}, err
}

// path is the plugins' CNI_PATH.
func (w *which) path(dir string) []string {
	more := w.Path
	if len(more) == 0 {
		more = filepath.SplitList(os.Getenv("CNI_PATH"))
	}
	path := []string{dir}
	for _, d := range more {
		if abs, err := filepath.Abs(d); err == nil && !slices.Contains(path, abs) {
			path = append(path, abs)
		}
	}
	return path
}

// initCommand prints a subject.
type initCommand struct {
	app *app
	which
}

// Execute asks the plugin.
func (c *initCommand) Execute([]string) error {
	if c.Plugin == "" {
		return usage("", "init needs --plugin FILE")
	}
	t, err := c.target()
	if err != nil {
		return err
	}
	out, err := c.app.do(job{Subject: t.subject, Path: c.path(filepath.Dir(t.file)), Ask: askAll, Beside: c.Beside})
	for _, line := range out.Said {
		fmt.Fprintf(c.app.stderr, "%s: %s\n", t.subject.Type, line) //nolint:errcheck // nobody reads
	}
	if err != nil {
		return err
	}
	return printJSON(c.app.stdout, out.Subject)
}

// runCommand runs the rules.
type runCommand struct {
	app *app
	which
	Dir string `long:"dir" value-name:"DIR" description:"test every plugin in this directory"`
	outcome
}

// Execute runs the rules on each plugin.
func (c *runCommand) Execute([]string) error {
	if (c.Plugin == "") == (c.Dir == "") {
		return usage("", "run needs either --plugin FILE or --dir DIR")
	}
	list, unknown, err := c.targets()
	if err != nil {
		return err
	}
	text := c.text(c.app)
	var all []report.Plugin
	for _, t := range list {
		p, err := c.one(t, &text)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	text.End(all, unknown)
	return c.finish(c.app, all)
}

func (c *runCommand) targets() ([]target, []string, error) {
	if c.Dir == "" {
		t, err := c.target()
		return []target{t}, nil, err
	}
	list, unknown, err := targets(c.Dir, c.Config)
	if err == nil && len(list) == 0 {
		err = usage("--config DIR names a directory of subjects", "%s has no plugin that the suite knows", c.Dir)
	}
	return list, unknown, err
}

// one runs the rules on one plugin.
func (c *runCommand) one(t target, text *report.Text) (report.Plugin, error) {
	file, err := filepath.Abs(t.file)
	if err != nil {
		return report.Plugin{}, err
	}
	p := report.Plugin{File: file, Subject: t.subject}
	path, begun := c.path(filepath.Dir(file)), time.Now()
	if t.asks() {
		out, err := c.app.do(job{Subject: t.subject, Path: path, Ask: t.ask, Beside: c.Beside})
		if err != nil {
			return p, err
		}
		p.Subject, p.Said = out.Subject, out.Said
	}
	p.Name = cmp.Or(p.Subject.Name, p.Subject.Type)
	text.Begin(p)
	p.Findings, err = c.check(p.Subject, path)
	for _, o := range p.Outcomes {
		text.Outcome(o)
	}
	p.Milliseconds = time.Since(begun).Milliseconds()
	return p, err
}

// slow is how long the ADD of a plugin takes whose rules run in several processes at once. Such a plugin waits, for
// example for IPv6, and a whole run would take minutes. Faster plugins have one process: if they keep state where the suite
// does not look, such as in /tmp, several would meet there.
const slow, processes = 500 * time.Millisecond, 4

// check runs the rules.
func (c *runCommand) check(s conformance.Subject, path []string) (f conformance.Findings, err error) {
	names, err := c.rules(s)
	if err != nil {
		return f, err
	}
	first := 1 // says how slow the plugin is
	if len(s.State) > 0 {
		first = len(names) // in one process
	}
	out, err := c.app.do(job{Subject: s, Path: path, Only: names[:first], Beside: c.Beside})
	if err != nil {
		return f, err
	}
	f, names = out.Findings, names[first:]
	parts := make([][]string, 1)
	if f.FirstADD > slow {
		parts = make([][]string, processes)
	}
	for i, name := range names {
		parts[i%len(parts)] = append(parts[i%len(parts)], name)
	}
	found, errs := make([]answer, len(parts)), make([]error, len(parts))
	var running sync.WaitGroup
	for i, part := range parts {
		if len(part) > 0 {
			running.Go(func() { found[i], errs[i] = c.app.do(job{Subject: s, Path: path, Only: part, Beside: c.Beside}) })
		}
	}
	running.Wait()
	for _, more := range found {
		f.Outcomes = append(f.Outcomes, more.Outcomes...)
	}
	slices.SortStableFunc(f.Outcomes, func(a, b conformance.Outcome) int { return cmp.Compare(a.Rule.Name, b.Rule.Name) })
	f.Outcomes = slices.CompactFunc(f.Outcomes, func(a, b conformance.Outcome) bool { // each process says that nothing can be tested
		return a.Rule.Name == b.Rule.Name && a.Version == b.Version
	})
	return f, errors.Join(errs...)
}

// rules returns the names of the rules to run.
func (c *runCommand) rules(s conformance.Subject) (names []string, err error) {
	rules, err := conformance.Rules(conformance.Contract())
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		names = append(names, r.Name)
	}
	for _, r := range s.Refused {
		names = append(names, "refused "+r.About)
	}
	return c.only(names)
}
