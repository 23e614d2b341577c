// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Level says who demands a rule.
type Level string

// The levels of rules.
const (
	Must   Level = "MUST"   // the specification, or a plugin that breaks the rule cannot be used by a runtime
	Should Level = "SHOULD" // the specification recommends it
	Users  Level = "USERS"  // nobody wrote it down, but users suffer: leaks, lost addresses, outages
	Own    Level = "OWN"    // the plugin's author, in the subject
)

// Rule is one rule of the contract.
type Rule struct {
	Name    string   `json:"name"` // of the script
	Level   Level    `json:"level"`
	Says    string   `json:"says"`
	Sources []string `json:"sources"` // sections of the specification, with its version, or where users met the problem
	Script  string   `json:"script,omitempty"`
}

// Rules reads the rules of a directory of scripts. A script begins with a comment: the rule, an empty line, and
// lines of the form "level: MUST" and "source: SPEC 1.1.0, section 2, DEL". A source may go on in indented lines.
func Rules(fsys fs.FS) ([]Rule, error) {
	names, err := fs.Glob(fsys, "*.txtar")
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	var rules []Rule
	for _, name := range names {
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("read rule: %w", err)
		}
		r, err := parseRule(strings.TrimSuffix(path.Base(name), ".txtar"), string(data))
		if err != nil {
			return nil, fmt.Errorf("read rule %s: %w", name, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func parseRule(name, script string) (Rule, error) {
	r := Rule{Name: name}
	var says []string
	for line := range strings.Lines(script) {
		text, comment := strings.CutPrefix(strings.TrimRight(line, "\n"), "#")
		if !comment {
			break
		}
		script = script[len(line):]
		level, isLevel := strings.CutPrefix(text, " level: ")
		source, isSource := strings.CutPrefix(text, " source: ")
		switch {
		case isLevel:
			r.Level = Level(level)
		case isSource:
			r.Sources = append(r.Sources, source)
		case len(r.Sources) > 0:
			r.Sources[len(r.Sources)-1] += " " + strings.TrimSpace(text)
		case text != "":
			says = append(says, strings.TrimSpace(text))
		}
	}
	r.Says, r.Script = strings.Join(says, " "), script
	switch {
	case r.Level != Must && r.Level != Should && r.Level != Users:
		return r, fmt.Errorf("level is %q, want MUST, SHOULD or USERS", r.Level)
	case r.Says == "" || len(r.Sources) == 0:
		return r, fmt.Errorf("its comment needs the rule and a source")
	}
	return r, nil
}
