// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package report writes what came out of the rules as text, JSON, JUnit's XML and one HTML page.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/patchbay-net/patchbay/conformance"
)

// Plugin is what came out for one plugin.
type Plugin struct {
	Name         string              `json:"name"`
	File         string              `json:"file"`
	Subject      conformance.Subject `json:"subject"`
	Said         []string            `json:"said,omitempty"` // what the plugin was found to be
	Milliseconds int64               `json:"milliseconds"`

	conformance.Findings
}

// Count returns how many rules had a verdict.
func (p *Plugin) Count(v conformance.Verdict) (n int) {
	for _, o := range p.Outcomes {
		if o.Verdict == v {
			n++
		}
	}
	return n
}

// Text writes lines while the rules run.
type Text struct {
	W io.Writer
}

func (t *Text) printf(format string, args ...any) {
	fmt.Fprintf(t.W, format, args...) //nolint:errcheck // the other reports, and the exit status, say it too
}

// Begin writes the name of a plugin.
func (t *Text) Begin(p Plugin) {
	t.printf("%s (%s, %s)\n", p.Name, p.Subject.Kind, p.File)
	for _, line := range p.Said {
		t.printf("  %s\n", line)
	}
	t.printf("\n")
}

// Outcome writes the line of one rule, and for a rule that is broken what is wrong, who demands it and how to
// repeat it.
func (t *Text) Outcome(o conformance.Outcome) {
	name := o.Rule.Name
	if o.Rule.Name == "life" {
		name += " " + o.Version
	}
	switch o.Verdict {
	case conformance.Passed:
		t.printf("  ok    %-6s %s\n", o.Rule.Level, name)
	case conformance.NotApplicable:
		t.printf("  -     %-6s %s: not applicable: %s\n", o.Rule.Level, name, o.Why)
	case conformance.Failed:
		t.printf("  FAIL  %-6s %s\n", o.Rule.Level, name)
		t.paragraph("rule", o.Rule.Says)
		t.paragraph("wrong", o.Why)
		for _, s := range o.Rule.Sources {
			t.paragraph("source", s)
		}
		t.paragraph("by hand", Shell(o.Steps))
	}
}

func (t *Text) paragraph(name, text string) {
	if text == "" {
		return
	}
	const indent = "                 "
	t.printf("        %-8s %s\n", name, strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+indent))
}

// End writes the sums. unknown are the programs without a configuration.
func (t *Text) End(all []Plugin, unknown []string) {
	t.printf("\n")
	for _, p := range all {
		broken := ""
		for _, l := range []conformance.Level{conformance.Must, conformance.Should, conformance.Users, conformance.Own} {
			if n := failedOf(p, l); n > 0 {
				broken += fmt.Sprintf(", %d %s", n, l)
			}
		}
		if broken != "" {
			broken = " (" + broken[2:] + ")"
		}
		t.printf("%s: %d passed, %d failed%s, %d not applicable, in %.1f s\n", p.Name, p.Count(conformance.Passed), p.Count(conformance.Failed), broken,
			p.Count(conformance.NotApplicable), float64(p.Milliseconds)/1000)
		if n := len(p.Stands); n > 0 {
			t.printf("%s: its first ADD and DEL left %d objects, which no rule counts: they may be the network's or the node's. The first: %.60s\n", p.Name, n, p.Stands[0])
		}
	}
	for _, name := range unknown {
		t.printf("%s: not tested, because the suite has no configuration for it: patchbay-conformance init --plugin %s\n", name, name)
	}
}

func failedOf(p Plugin, l conformance.Level) (n int) {
	for _, o := range p.Outcomes {
		if o.Verdict == conformance.Failed && o.Rule.Level == l {
			n++
		}
	}
	return n
}

// JSON writes an object with the list of plugins.
func JSON(w io.Writer, all []Plugin) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(map[string]any{"plugins": all})
}

// apartShell says where the commands of Shell can be typed.
const apartShell = `# in namespaces of your own: unshare --user --map-root-user --net --mount sh
mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /var/lib; ip link set lo up`

// Shell returns the steps as commands that repeat them. What a call answered is in comments.
func Shell(steps []conformance.Step) string {
	if len(steps) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(apartShell + "\n")
	for _, s := range steps {
		if s.Call == nil {
			b.WriteString(s.Command + "\n")
			continue
		}
		b.WriteString(callLine(s.Call))
	}
	return b.String()
}

func callLine(c *conformance.Call) string {
	var b strings.Builder
	if len(c.Args) == 0 { // a plugin
		b.WriteString("printf %s " + quote(c.Stdin) + " | ")
	}
	for _, kv := range c.Env {
		key, value, _ := strings.Cut(kv, "=")
		b.WriteString(key + "=" + quote(value) + " ")
	}
	if c.Killed {
		fmt.Fprintf(&b, "timeout -s KILL %.4f ", c.Milliseconds/1000)
	}
	b.WriteString(quote(c.Program))
	for _, arg := range c.Args {
		b.WriteString(" " + quote(arg))
	}
	b.WriteString("\n")
	fmt.Fprintf(&b, "# exit %d", c.Exit)
	for _, out := range []struct{ name, text string }{{"stdout", c.Stdout}, {"stderr", c.Stderr}} {
		if text := strings.Join(strings.Fields(out.text), " "); text != "" {
			fmt.Fprintf(&b, "; %s: %s", out.name, text)
		}
	}
	return b.String() + "\n"
}

// quote writes a word for a shell.
func quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("/._-:,=+@", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
