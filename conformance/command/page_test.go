// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/runtimes"
	"github.com/patchbay-net/patchbay/internal/test/docpage"
)

var update = flag.Bool("update", false, "write the tables of rules in docs/conformance.md anew")

const page = "../../docs/conformance.md"

func readPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every command of the page is run, as a reader would, beside the shell plugin of examples/ and our runtime.
func TestPage(t *testing.T) {
	steps, err := docpage.Parse(readPage(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{program, "patchbay"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("../../examples/sh-ipam/sh-ipam")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sh-ipam"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if s.File != "" {
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(s.File)), []byte(s.Text), 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		cmd := exec.Command("sh", "-ec", s.Command)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil || s.Prints != nil && !s.Matches(string(out)) {
			t.Errorf("%s:%d: %s: %v\n%s", page, s.Line, s.Command, err, out)
		}
	}
	if len(steps) < 5 {
		t.Errorf("the page has %d commands", len(steps))
	}
	if _, err := os.Stat(filepath.Join(dir, "report.html")); err != nil {
		t.Error(err)
	}
}

// The page shows the test that examples/ has.
func TestPageHasTheExample(t *testing.T) {
	_, block, _ := strings.Cut(readPage(t), "```go\n")
	block, _, _ = strings.Cut(block, "```")
	example, err := os.ReadFile("../../examples/conformance/conformance_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if block == "" || !strings.HasSuffix(string(example), block) {
		t.Errorf("the end of the example is not\n%s", block)
	}
}

// The page lists every rule.
func TestPageListsTheRules(t *testing.T) {
	rules, err := conformance.Rules(conformance.Contract())
	if err != nil {
		t.Fatal(err)
	}
	listed(t, "<!-- rules -->\n", rules)
	listed(t, "<!-- rules for runtimes -->\n", runtimes.Rules())
}

// listed compares the table behind a mark with the rules, or writes it anew.
func listed(t *testing.T, begin string, rules []conformance.Rule) {
	t.Helper()
	table := "\n| rule | level | |\n| --- | --- | --- |\n"
	for _, r := range rules {
		table += fmt.Sprintf("| `%s` | %s | %s |\n", r.Name, r.Level, r.Says)
	}
	const end = "<!-- end -->\n"
	text := readPage(t)
	before, rest, _ := strings.Cut(text, begin)
	_, after, ok := strings.Cut(rest, end)
	want := before + begin + table + "\n" + end + after
	switch {
	case !ok:
		t.Errorf("%s has no marks %q and %q", page, begin, end)
	case *update:
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	case text != want:
		t.Errorf("%s: the table of rules is old: go test ./conformance/command -run TestPageListsTheRules -update", page)
	}
}
