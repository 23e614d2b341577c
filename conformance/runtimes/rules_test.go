// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// broken runs rules on the runtime with a fault, and returns the names of those that it breaks.
func broken(t *testing.T, fault string, only []string) (names []string, why string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Command: []string{self, "runtime", fault}, Only: only, Node: Files(t.TempDir()), Timeout: hangLimit, Limit: 20 * time.Second}
	out, err := Check(o)
	if err != nil {
		t.Fatal(err)
	}
	if only == nil && len(out) != len(rules) {
		t.Errorf("%d rules were judged, want %d", len(out), len(rules))
	}
	for _, o := range out {
		if o.Verdict == conformance.Failed {
			names = append(names, o.Rule.Name)
			why += o.Rule.Name + ": " + o.Why + "\n"
		}
		if fault == "none" && o.Verdict != conformance.Passed {
			t.Errorf("%s: %s: %s", o.Rule.Name, o.Verdict, o.Why)
		}
	}
	return names, why
}

// A runtime without a fault keeps every rule.
func TestARightRuntimePasses(t *testing.T) {
	t.Parallel() // it waits for a plugin that hangs
	broken(t, "none", nil)
}

// Each fault is found by the rule about it and by no other. In `make test` only the rules of that rule's scenario run. A plugin
// that hangs takes seconds each time.
func TestEachFaultIsFoundByItsRule(t *testing.T) {
	t.Parallel()
	all := draw.All(t)
	for _, r := range rules {
		if r.Name == "plugin-hangs" && !all { // it takes the whole limit
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			var only []string
			for _, other := range rules {
				if other.scenario == r.scenario || all && other.scenario != "hang" {
					only = append(only, other.Name)
				}
			}
			if names, why := broken(t, r.Name, only); !slices.Equal(names, []string{r.Name}) {
				t.Errorf("it breaks %q\n%s", names, why)
			}
		})
	}
}

// A runtime may be older, make namespaces itself, and be unable to pass everything on. Then fewer rules judge it.
func TestARuntimeThatHasLess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := Check(Options{
		Command: []string{self, "runtime", "none"}, Node: Files(t.TempDir()), Version: "1.0.0", Without: []string{"args", "netns"},
		Only: []string{"args", "config-name", "environment", "gc-all", "plugin-hangs"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"args not applicable --without args", "config-name passed ", "environment passed ", "gc-all not applicable the runtime has no version 1.1.0",
		"plugin-hangs not applicable --timeout says how long the runtime waits for a plugin",
	}
	got := []string{}
	for _, o := range out {
		got = append(got, o.Rule.Name+" "+string(o.Verdict)+" "+o.Why)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A runtime may choose the interface's name itself, if the command says so.
func TestARuntimeThatNamesTheInterface(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for without, want := range map[string]conformance.Verdict{"ifname": conformance.Passed, "args": conformance.Failed} {
		out, err := Check(Options{
			Command: []string{self, "runtime", "ifname"}, Node: Files(t.TempDir()), Without: []string{without}, Only: []string{"environment", "gc-list"},
		})
		if err != nil {
			t.Fatal(err)
		}
		if out[0].Verdict != want {
			t.Errorf("--without %q: %s is %s, want %s: %s", without, out[0].Rule.Name, out[0].Verdict, want, out[0].Why)
		}
	}
}

// Each rule says who demands it, and judges an operation that its scenario has.
func TestRulesAreWhole(t *testing.T) {
	byName := map[string]*scenario{}
	for i := range scenarios {
		byName[scenarios[i].name] = &scenarios[i]
	}
	for _, r := range rules {
		sc := byName[r.scenario]
		if sc == nil || r.op >= len(sc.operations) {
			t.Errorf("%s: no operation %d of a scenario %q", r.Name, r.op, r.scenario)
		}
		if r.Says == "" || len(r.Sources) == 0 || r.check == nil {
			t.Errorf("%s: it needs a text, a source and a check", r.Name)
		}
	}
	if !slices.IsSortedFunc(rules, func(a, b rule) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the rules are not sorted by name")
	}
}
