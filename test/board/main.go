// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command board writes what patchbay-conformance found into the scoreboard: rows of docs/scoreboard.md, and a page with each
// broken rule and the calls that show it. scripts/scoreboard runs it; nobody writes a row by hand.
//
//	go run ./test/board PROJECT VERSION WHEN REPORT.json...
//
// PROJECT is the name of the page, without spaces. A report is what patchbay-conformance wrote with --json.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/report"
)

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: board PROJECT VERSION WHEN REPORT.json...")
		os.Exit(2)
	}
	p := project{Name: os.Args[1], Version: os.Args[2], When: os.Args[3]}
	if err := p.write("docs", os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "board:", err)
		os.Exit(1)
	}
}

// project is what one run tested: the plugins of a project, or a runtime.
type project struct {
	Name, Version, When string
	Plugins             []report.Plugin
}

// write reads the reports, and writes the rows and the project's page below dir.
func (p *project) write(dir string, reports []string) error {
	for _, file := range reports {
		if err := p.read(file); err != nil {
			return err
		}
	}
	index := filepath.Join(dir, "scoreboard.md")
	text, err := os.ReadFile(index)
	if err != nil {
		return fmt.Errorf("read the scoreboard: %w", err)
	}
	changed, err := p.into(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", index, err)
	}
	page := filepath.Join(dir, "scoreboard", p.Name+".md")
	if err := os.WriteFile(page, []byte(p.page()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(index, []byte(changed), 0o644)
}

// read adds what a report has.
func (p *project) read(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the report: %w", err)
	}
	var more struct{ Plugins []report.Plugin }
	if err := json.Unmarshal(data, &more); err != nil {
		return fmt.Errorf("read the report %s: %w", file, err)
	}
	if len(more.Plugins) == 0 {
		return fmt.Errorf("the report %s has no plugin", file)
	}
	for _, plugin := range more.Plugins {
		p.add(plugin)
	}
	return nil
}

// add adds a plugin, or further outcomes of one: a slow runtime is tested in parts.
func (p *project) add(plugin report.Plugin) {
	at := slices.IndexFunc(p.Plugins, func(have report.Plugin) bool { return have.Name == plugin.Name })
	if at < 0 {
		p.Plugins = append(p.Plugins, plugin)
		return
	}
	have := &p.Plugins[at]
	have.Outcomes = append(have.Outcomes, plugin.Outcomes...)
	slices.SortStableFunc(have.Outcomes, func(a, b conformance.Outcome) int { return strings.Compare(a.Rule.Name, b.Rule.Name) })
}
