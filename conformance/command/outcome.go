// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/report"
)

// outcome has the flags about rules and reports, which the commands for plugins and for runtimes share.
type outcome struct {
	Rule  []string `long:"rule" value-name:"NAME" description:"run only this rule (may be repeated)"`
	Level string   `long:"level" choice:"must" choice:"should" choice:"all" default:"all" description:"the rules that count for the exit status"`
	JSON  string   `long:"json" value-name:"FILE" description:"write a report as JSON (- is standard output)"`
	JUnit string   `long:"junit" value-name:"FILE" description:"write a report as JUnit's XML"`
	HTML  string   `long:"html" value-name:"FILE" description:"write a report as one HTML page"`
}

// only returns the names of the rules to run, of those that exist.
func (c *outcome) only(names []string) ([]string, error) {
	for _, name := range c.Rule {
		if !slices.Contains(names, name) {
			return nil, usage(program+" list prints the rules, and list --runtime those for runtimes", "no rule is named %q", name)
		}
	}
	if c.Rule != nil {
		return c.Rule, nil
	}
	return names, nil
}

// text is the report for people.
func (c *outcome) text(a *app) report.Text {
	if c.JSON == "-" {
		return report.Text{W: io.Discard}
	}
	return report.Text{W: a.stdout}
}

// finish writes the other reports, and sets the exit status.
func (c *outcome) finish(a *app, all []report.Plugin) error {
	c.judge(a, all)
	return c.write(a, all)
}

// write writes the reports that were asked for.
func (c *outcome) write(a *app, all []report.Plugin) error {
	var errs []error
	for _, to := range []struct {
		file  string
		write func(io.Writer, []report.Plugin) error
	}{{c.JSON, report.JSON}, {c.JUnit, report.JUnit}, {c.HTML, report.HTML}} {
		switch to.file {
		case "":
		case "-":
			errs = append(errs, to.write(a.stdout, all))
		default:
			f, err := os.Create(to.file)
			if err == nil {
				err = errors.Join(to.write(f, all), f.Close())
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("write the report: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// judge sets the exit status.
func (c *outcome) judge(a *app, all []report.Plugin) {
	for _, p := range all {
		for _, o := range p.Outcomes {
			if o.Verdict == conformance.Failed && c.counts(o.Rule.Level) {
				a.status = exitFailed
			}
		}
	}
}

func (c *outcome) counts(l conformance.Level) bool {
	return c.Level == "all" || l == conformance.Must || c.Level == "should" && l == conformance.Should
}
