// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	action    = regexp.MustCompile(`^[a-z0-9./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	ourScript = regexp.MustCompile(`^(\.ci|scripts)/[a-z-]+$`)
)

// TestWorkflows: what a forge runs is what anybody can run here, and code of others is named by its content, because
// whoever owns an action can move its tags.
func TestWorkflows(t *testing.T) {
	files, err := fs.Glob(os.DirFS("."), ".github/workflows/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	for _, file := range files {
		text := read(t, file)
		if !strings.Contains(text, "\npermissions:\n  contents: read\n") {
			t.Errorf("%s: a workflow may read, and only a job may have more", file)
		}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), ": ")
			switch {
			case key == "uses" && !action.MatchString(value):
				t.Errorf("%s: %q: an action needs its full digest and a comment with its version", file, value)
			case strings.TrimSuffix(key, ":") == "run" && !isOurs(t, strings.Fields(value)):
				t.Errorf("%s: run %q: only a script of .ci or scripts, or a target of make", file, value)
			case key != "VERSION" && key != "GH_TOKEN" && key != "group" && strings.Contains(value, "${{"):
				t.Errorf("%s: %q: what others choose, such as a branch's name, comes by the environment", file, line)
			}
		}
	}
}

// isOurs says whether a command is `make TARGET`, or a script of ours, perhaps with such a command.
func isOurs(t *testing.T, words []string) bool {
	t.Helper()
	switch {
	case len(words) == 0:
		return false
	case words[0] == ".ci/forge":
		return isOurs(t, words[1:])
	case words[0] == "make":
		return len(words) > 1 && strings.Contains(read(t, "Makefile"), "\n"+words[1]+":")
	}
	_, err := os.Stat(words[0])
	return err == nil && ourScript.MatchString(words[0])
}

// TestWorkflowCommands: the judgement above is right about what it must refuse.
func TestWorkflowCommands(t *testing.T) {
	for command, want := range map[string]bool{
		"make test": true, ".ci/forge make test-rest": true, ".ci/publish v1 dir": true, "scripts/unit ./spec": true,
		"": false, "|": false, "make": false, "make nothing": false, "curl example.org": false, ".ci/forge sh -c x": false, "scripts/none": false,
	} {
		if isOurs(t, strings.Fields(command)) != want {
			t.Errorf("%q: want %t", command, want)
		}
	}
	for value, want := range map[string]bool{
		"actions/checkout@v6":                                             false,
		"actions/checkout@8e8c483 # v6.0":                                 false,
		"actions/checkout@" + strings.Repeat("8e8c483d", 5) + " # v6.0.1": true,
	} {
		if action.MatchString(value) != want {
			t.Errorf("%q: want %t", value, want)
		}
	}
}
