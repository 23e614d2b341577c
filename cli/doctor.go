// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/cli/doctor"
)

const doctorLong = `Find what is wrong with the networking of this node and print what to do about
it. Nothing is changed. The kernel's features are tried in a separate namespace.

The exit status is for monitoring: 0 when nothing is wrong, 1 with warnings
only, 2 with problems (something does not work now, or an ADD would fail), 3
if doctor could not run as asked.

  patchbay doctor
  patchbay doctor --check pools --check conntrack --json`

type doctorCommand struct {
	app   *app
	Check []checkID     `long:"check" value-name:"ID" description:"run this check only; may be repeated"`
	List  bool          `long:"list" description:"list the checks and run none"`
	From  runtimeName   `long:"from" value-name:"crictl|podman|docker|FILE" description:"treat containers that this runtime lists as alive, as gc does"`
	Grace time.Duration `long:"grace" value-name:"DURATION" default:"1m" description:"treat what is younger as alive, as gc does"`
	JSON  bool          `long:"json" description:"print a JSON object"`
}

// Execute examines the node.
func (c *doctorCommand) Execute([]string) error {
	checks, err := c.checks()
	if err != nil {
		return err
	}
	if c.List {
		return c.list(checks)
	}
	if err := needRoot("doctor"); err != nil { // most checks would report what they cannot see as missing
		return &failure{err: err, hint: rootHint, code: exitUnknown}
	}
	n, err := c.node()
	if err != nil {
		return unknown(err)
	}
	if err := n.Open(); err != nil {
		return unknown(err)
	}
	defer n.Close()
	report := doctor.Examine(c.app.ctx, n, checks)
	if err := c.app.show(report, doctorText(report)); err != nil {
		return unknown(err)
	}
	switch report.Worst() {
	case doctor.Problem:
		return exit(exitProblems)
	case doctor.Warning:
		return exit(exitWarnings)
	}
	return nil
}

// unknown marks err as a failure of doctor itself. The status is then 3, which monitoring plugins
// call "unknown".
func unknown(err error) error { return &failure{err: err, code: exitUnknown} }

func (c *doctorCommand) checks() (list []doctor.Check, err error) {
	all := doctor.Checks()
	if len(c.Check) == 0 {
		return all, nil
	}
	for _, id := range c.Check {
		i := slices.IndexFunc(all, func(c doctor.Check) bool { return c.ID == string(id) })
		if i < 0 {
			return nil, &failure{err: fmt.Errorf("no check %q", id), hint: "patchbay doctor --list", code: exitUnknown}
		}
		list = append(list, all[i])
	}
	return list, nil
}

func (c *doctorCommand) list(checks []doctor.Check) error {
	ids := []string{}
	t := newTable("CHECK", "WELL WHEN")
	for _, check := range checks {
		ids = append(ids, check.ID)
		t.row(check.ID, check.Title)
	}
	return c.app.show(ids, t.String())
}

func (c *doctorCommand) node() (*doctor.Node, error) {
	o, err := c.app.gcOptions(c.From, c.Grace)
	return &doctor.Node{Paths: o.Paths, ConfDir: confDir(c.app.getenv), Runtime: o.Runtime, NewSession: o.NewSession, GC: o}, err
}

// doctorText returns a paragraph for each finding, problems before warnings.
func doctorText(r *doctor.Report) string {
	var b strings.Builder
	for _, level := range [...]doctor.Level{doctor.Problem, doctor.Warning} {
		for _, f := range r.Findings {
			if f.Level == level {
				fmt.Fprintf(&b, "%s: %s\n  check: %s\n  do: %s\n", f.Level, oneLine(f.What), f.Check, oneLine(f.Fix))
			}
		}
	}
	if len(r.Findings) == 0 {
		fmt.Fprintf(&b, "healthy: %d checks found nothing\n", len(r.Checks))
	}
	return b.String()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
