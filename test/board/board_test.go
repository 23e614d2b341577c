// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/report"
)

// found is what a rule says of a plugin.
func found(rule string, l conformance.Level, v conformance.Verdict, why string) conformance.Outcome {
	return conformance.Outcome{
		Rule: conformance.Rule{Name: rule, Level: l, Says: "The rule " + rule + ".", Sources: []string{"SPEC of " + rule}}, Version: "1.1.0", Verdict: v, Why: why,
		Steps: []conformance.Step{{Command: "ip netns add pbtaaaaaaaaaaaa"}, {Command: "ip link delete pbtaaaaaaaaa"}},
	}
}

func plugin(name, kind string, outcomes ...conformance.Outcome) report.Plugin {
	return report.Plugin{Name: name, Subject: conformance.Subject{Kind: kind}, Findings: conformance.Findings{Outcomes: outcomes}}
}

const empty = "# Scoreboard\n\n<!-- plugins: end -->\n\n<!-- runtimes: end -->\n"

// Rows are put into the table of their kind, and in the place of the project's old rows.
func TestRows(t *testing.T) {
	broken := found("two", conformance.Users, conformance.Failed, "left")
	first := project{Name: "one", Version: "v1", When: "today", Plugins: []report.Plugin{
		plugin("a", "ipam", found("gc", conformance.Must, conformance.Passed, ""), broken, found("life", conformance.Must, conformance.Failed, "x")), plugin("b", "ipam"),
	}}
	other := project{Name: "run", Version: "v2", When: "today", Plugins: []report.Plugin{plugin("r", "runtime")}}
	text := empty
	for _, p := range []project{first, other} {
		var err error
		if text, err = p.into(text); err != nil {
			t.Fatal(err)
		}
	}
	want := "# Scoreboard\n\n" +
		"| [one](scoreboard/one.md) | a | v1 | 1 | 1 MUST: `life` 1.1.0; 1 USERS: `two` | 0 | today |\n" +
		"| [one](scoreboard/one.md) | b | v1 | 0 | – | 0 | today |\n<!-- plugins: end -->\n\n" +
		"| [run](scoreboard/run.md) | r | v2 | 0 | – | 0 | today |\n<!-- runtimes: end -->\n"
	if text != want {
		t.Errorf("got\n%s", text)
	}
	first.Version, first.Plugins = "v3", first.Plugins[1:]
	text, err := first.into(text)
	if err != nil || strings.Contains(text, "| a |") || !strings.Contains(text, "| b | v3 | 0 | – | 0 | today |\n<!-- plugins: end -->") {
		t.Errorf("%v:\n%s", err, text)
	}
	if _, err := first.into("# A page without tables\n"); err == nil || !strings.Contains(err.Error(), "no line <!-- plugins: end -->") {
		t.Errorf("a page without a mark: %v", err)
	}
}

// A plugin that could not be tested is not one without faults.
func TestNotTested(t *testing.T) {
	p := project{Name: "one", Version: "v1", When: "today", Plugins: []report.Plugin{
		plugin("a", "ipam", found("all", conformance.Must, conformance.NotApplicable, "the kernel lacks vrf")),
	}}
	if rows := p.rows(); len(rows) != 1 || !strings.Contains(rows[0], "| a | v1 | 0 | not tested: the kernel lacks vrf | 1 |") {
		t.Errorf("got %q", rows)
	}
	if page := p.page(); !strings.HasSuffix(page, "\n\nNo rule is broken.\n") {
		t.Errorf("got\n%s", page)
	}
}

// The page has each broken rule once, those of the highest level first, with names that are the same in each run.
func TestPage(t *testing.T) {
	p := project{Name: "one", Version: "v1", When: "today", Plugins: []report.Plugin{
		plugin("a", "ipam", found("two", conformance.Users, conformance.Failed, "left pbtaaaaaaaaaaaa")),
		plugin("b", "ipam", found("two", conformance.Users, conformance.Failed, "left pbtaaaaaaaaaaaa"), found("gc", conformance.Must, conformance.Failed, "none")),
		plugin("c", "ipam", found("two", conformance.Users, conformance.Failed, "other"), found("version", conformance.Must, conformance.Passed, ""),
			found("life", conformance.Must, conformance.Failed, "older")),
		plugin("d", "ipam", found("life", conformance.Must, conformance.Failed, "older")),
	}}
	page := p.page()
	at := 0
	for _, want := range []string{
		"# one v1\n", "\n## MUST gc\n\nThe rule gc.\n\n- SPEC of gc\n\n`b`:\n\n```text\nnone\n```\n", "\n## MUST life\n", "\n`c` 1.1.0, `d` 1.1.0:\n\n```text\nolder\n```\n",
		"\n## USERS two\n",
		"\n`a`, `b`:\n\n```text\nleft container-1\n```\n", "ip netns add container-1\nip link delete host-1\n```\n", "\n`c`:\n\n```text\nother\n```\n",
	} {
		next := strings.Index(page[at:], want)
		if next < 0 {
			t.Fatalf("%q is missing, or not in its place:\n%s", want, page)
		}
		at += next
	}
	if strings.Contains(page, "pbt") || strings.Contains(page, "version\n") {
		t.Errorf("it has a name that is drawn by chance, or a rule that passed:\n%s", page)
	}
}

// The calls are shown without the preparation of a container that none of them is about.
func TestNeeded(t *testing.T) {
	o := found("two", conformance.Must, conformance.Failed, "x")
	o.Steps = []conformance.Step{
		{Command: "ip netns add pbtaaaaaaaaaaaa"}, {Command: "ip netns add pbtbbbbbbbbbbbb"}, {Command: "ip link set lo up"},
		{Call: &conformance.Call{Program: "/bin/p", Env: []string{"CNI_CONTAINERID=pbtbbbbbbbbbbbb"}}},
	}
	p := project{Name: "one", Plugins: []report.Plugin{plugin("a", "ipam", o)}}
	page := p.page()
	if strings.Contains(page, "container-2") || !strings.Contains(page, "\nip netns add container-1\nip link set lo up\nprintf") {
		t.Errorf("got\n%s", page)
	}
}

// What a program says may be long, and is cut. What a reader types is not.
func TestCut(t *testing.T) {
	long := strings.Repeat("é", longest+1)
	want := "# " + strings.Repeat("é", longest-2) + "…\n" + long
	if got := cut("# "+long+"\n"+long, isComment); got != want {
		t.Errorf("got %q", got)
	}
}

// Several reports are one project, two of one plugin are one row, and a report without plugins changes nothing.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"scoreboard.md": empty, "a.json": `{"plugins": [{"name": "a", "subject": {"kind": "ipam"}}]}`, "b.json": `{"plugins": [{"name": "b", "outcomes": [{"rule": {"name": "two"}, "verdict": "passed"}]}]}`, "none.json": `{}`,
		"more.json": `{"plugins": [{"name": "b", "outcomes": [{"rule": {"name": "one"}, "verdict": "passed"}]}]}`,
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "scoreboard"), 0o700); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := (&project{Name: "one"}).write(dir, []string{in("a.json"), in("none.json")}); err == nil || !strings.Contains(err.Error(), "none.json has no plugin") {
		t.Errorf("a report without plugins: %v", err)
	}
	if err := (&project{Name: "one", Version: "v1"}).write(dir, []string{in("a.json"), in("b.json"), in("more.json")}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"scoreboard.md": "| b | v1 | 2 |", "scoreboard/one.md": "# one v1\n"} {
		if text, err := os.ReadFile(in(name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v:\n%s", name, err, text)
		}
	}
}
