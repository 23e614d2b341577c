// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/report"
)

// mark ends a table of the scoreboard. There is one for plugins and one for runtimes.
func (p *project) mark() string {
	if p.Plugins[0].Subject.Kind == "runtime" {
		return "<!-- runtimes: end -->"
	}
	return "<!-- plugins: end -->"
}

// into puts the project's rows into the scoreboard, in the place of its old ones.
func (p *project) into(text string) (string, error) {
	end := p.mark()
	if strings.Count(text, end+"\n") != 1 {
		return "", fmt.Errorf("it has no line %s, or more than one", end)
	}
	lines := strings.Split(text, "\n")
	at := slices.IndexFunc(lines, p.owns)
	lines = slices.DeleteFunc(lines, p.owns)
	if at < 0 {
		at = slices.Index(lines, end)
	}
	return strings.Join(slices.Insert(lines, at, p.rows()...), "\n"), nil
}

// link is the first cell of each of the project's rows.
func (p *project) link() string { return fmt.Sprintf("| [%s](scoreboard/%[1]s.md) |", p.Name) }

func (p *project) owns(line string) bool { return strings.HasPrefix(line, p.link()) }

func (p *project) rows() (rows []string) {
	for _, plugin := range p.Plugins {
		rows = append(rows, fmt.Sprintf("%s %s | %s | %d | %s | %d | %s |", p.link(), plugin.Name, p.Version,
			plugin.Count(conformance.Passed), broken(plugin), plugin.Count(conformance.NotApplicable), p.When))
	}
	return rows
}

// levels are in the order in which the scoreboard lists what is broken.
func levels() []conformance.Level {
	return []conformance.Level{conformance.Must, conformance.Should, conformance.Users, conformance.Own}
}

// broken lists the broken rules of a plugin by their level, or says why no rule was judged, such as that the kernel lacks
// something.
func broken(p report.Plugin) string {
	if n := p.Count(conformance.NotApplicable); n > 0 && n == len(p.Outcomes) {
		return "not tested: " + p.Outcomes[0].Why
	}
	var parts []string
	for _, l := range levels() {
		if names := brokenAt(p, l); len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s: %s", len(names), l, strings.Join(names, ", ")))
		}
	}
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, "; ")
}

func brokenAt(p report.Plugin, l conformance.Level) (names []string) {
	for _, o := range p.Outcomes {
		if o.Verdict == conformance.Failed && o.Rule.Level == l {
			names = append(names, nameOf(o))
		}
	}
	return names
}

func nameOf(o conformance.Outcome) string { return "`" + o.Rule.Name + "`" + versionOf(o) }

// versionOf is the version, if the rule runs at several.
func versionOf(o conformance.Outcome) string {
	if o.Rule.Name == "life" {
		return " " + o.Version
	}
	return ""
}
