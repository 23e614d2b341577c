// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/report"
)

// fault is one way to break a rule, and the plugins that do.
type fault struct {
	why, shell string
	plugins    []string
}

// chapter is a broken rule.
type chapter struct {
	rule   conformance.Rule
	faults []fault
}

// page is the project's page: each broken rule, how it is broken, and the calls that show it.
func (p *project) page() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s %s\n\n", p.Name, p.Version)
	fmt.Fprintf(&b, "`scripts/scoreboard %s` wrote this page (%s). [The scoreboard](../scoreboard.md) has all projects, and\n[Conformance](../conformance.md) says what the rules are. ", p.Name, p.When)
	fmt.Fprintf(&b, "Plugins that break a rule in the same way stand together, with the calls of the first.\n")
	all := p.chapters()
	if len(all) == 0 {
		b.WriteString("\nNo rule is broken.\n")
	}
	for _, c := range all {
		fmt.Fprintf(&b, "\n## %s %s\n\n%s\n\n", c.rule.Level, c.rule.Name, c.rule.Says)
		for _, s := range c.rule.Sources {
			fmt.Fprintf(&b, "- %s\n", s)
		}
		for _, f := range c.faults {
			fmt.Fprintf(&b, "\n%s:\n\n```text\n%s\n```\n", strings.Join(f.plugins, ", "), f.why)
			if f.shell != "" {
				fmt.Fprintf(&b, "\n```text\n%s\n```\n", strings.TrimRight(f.shell, "\n"))
			}
		}
	}
	return b.String()
}

// chapters collects the broken rules, those of the highest level first.
func (p *project) chapters() (out []chapter) {
	for _, l := range levels() {
		for _, plugin := range p.Plugins {
			for _, o := range plugin.Outcomes {
				if o.Verdict == conformance.Failed && o.Rule.Level == l {
					out = add(out, plugin, o)
				}
			}
		}
	}
	return out
}

func add(all []chapter, plugin report.Plugin, o conformance.Outcome) []chapter {
	at := slices.IndexFunc(all, func(c chapter) bool { return c.rule.Name == o.Rule.Name })
	if at < 0 {
		at, all = len(all), append(all, chapter{rule: o.Rule})
	}
	c, s := &all[at], scrub{}
	f := fault{shell: cut(s.text(report.Shell(needed(o.Steps))), isComment), plugins: []string{"`" + plugin.Name + "`" + versionOf(o)}}
	f.why = cut(s.text(o.Why), func(string) bool { return true }) // after the calls, whose order numbers the containers
	same := slices.IndexFunc(c.faults, func(old fault) bool { return old.why == f.why })
	if same < 0 {
		c.faults = append(c.faults, f)
		return all
	}
	if last := &c.faults[same].plugins; !slices.Contains(*last, f.plugins[0]) {
		*last = append(*last, f.plugins[0])
	}
	return all
}

// longest is how many characters of a line that nobody has to type are shown.
const longest = 240

// cut shortens the lines that may be.
func cut(text string, may func(line string) bool) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if runes := []rune(line); len(runes) > longest && may(line) {
			lines[i] = string(runes[:longest]) + "…"
		}
	}
	return strings.Join(lines, "\n")
}

// isComment reports whether a line of a shell says what a call answered.
func isComment(line string) bool { return strings.HasPrefix(line, "# ") }

// needed leaves out what prepares a container that no call is about: the suite always prepares two.
func needed(steps []conformance.Step) (out []conformance.Step) {
	var calls strings.Builder
	for _, s := range steps {
		if s.Call != nil {
			fmt.Fprintln(&calls, s.Call.Env, s.Call.Stdin)
		}
	}
	about := func(container string) bool { return strings.Contains(calls.String(), container) }
	for _, s := range steps {
		if all := id.FindAllString(s.Command, -1); len(all) == 0 || calls.Len() == 0 || slices.ContainsFunc(all, about) {
			out = append(out, s)
		}
	}
	return out
}

// scrub gives what is drawn by chance the same name in every run, so that a page changes only if a plugin does. The zero
// value is for one rule.
type scrub struct{ ids []string }

// id is a container's identifier. Its first twelve characters name the host's end of a veth pair.
var (
	id   = regexp.MustCompile(`pbt[a-z0-9]{12}`)
	temp = regexp.MustCompile(`/tmp/[A-Za-z0-9_-]+[.-]?[A-Za-z0-9]*`)
)

func (s *scrub) text(text string) string {
	for _, found := range id.FindAllString(text, -1) {
		if !slices.Contains(s.ids, found) {
			s.ids = append(s.ids, found)
		}
	}
	for i, found := range s.ids {
		text = strings.ReplaceAll(text, found, fmt.Sprintf("container-%d", i+1))
		text = strings.ReplaceAll(text, found[:12], fmt.Sprintf("host-%d", i+1))
	}
	text = temp.ReplaceAllString(text, "/tmp/board")
	if home, err := os.UserHomeDir(); err == nil {
		text = strings.ReplaceAll(text, home+"/", "~/")
	}
	return text
}
