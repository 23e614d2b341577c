// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// TestShrink: only the objects that a bug needs are left, and nothing more can be removed.
func TestShrink(t *testing.T) {
	for name, want := range map[string]string{
		"no policyTypes is both":         "1 state: 1 namespace, 1 pod, 1 policy",
		"podSelector is every namespace": "1 state: 2 namespace, 2 pod, 1 policy",
	} {
		m, _ := Find(plantedBugs[name], Plan{Seed: 1, Tables: mostTables})
		small := Shrink(m.Case, plantedBugs[name])
		last := small.States[len(small.States)-1]
		got := fmt.Sprintf("%d state: %d namespace, %d pod, %d policy", len(small.States), len(last.Namespaces), len(last.Pods), len(last.Policies)+len(last.ClusterPolicies))
		if got != want {
			t.Errorf("%s: %s, want %s:\n%s", name, got, want, small)
		}
		if less, more := shrinkOnce(small, func(c Case) bool { return Ask(plantedBugs[name], c) != nil }); more {
			t.Errorf("%s: more could be removed:\n%s", name, less)
		}
	}
}

// TestShrinkKeepsTheStatesThatCount: a bug of a change needs the state before.
func TestShrinkKeepsTheStatesThatCount(t *testing.T) {
	newEngine := plantedBugs["a finished pod keeps its address"]
	m, _ := Find(newEngine, Plan{Seed: 1, Tables: mostTables, States: 8})
	if small := Shrink(m.Case, newEngine); len(small.States) != 2 {
		t.Errorf("%d states of %d are left, want 2:\n%s", len(small.States), len(m.Case.States), small)
	}
}

// TestCaseIsReplayed: what Compare prints, Replay reads.
func TestCaseIsReplayed(t *testing.T) {
	dir := t.TempDir()
	for seed := range uint64(20) {
		g := NewGenerator(seed, Small)
		c := Case{Probe: g.Probes()[0], States: []Cluster{g.Clone()}}
		file := filepath.Join(dir, fmt.Sprint(seed, ".json"))
		if err := os.WriteFile(file, []byte(c.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if again := readCase(t, file); again.Probe != c.Probe || !reflect.DeepEqual(answers(again.States[0]), answers(g.Cluster)) {
			t.Errorf("the case means something else after it was written and read:\n%s", c)
		}
	}
	Replay(t, func() Engine { return &misread{} }, dir)
}

func answers(c Cluster) []Verdict {
	var list []Verdict
	for _, p := range c.Probes() {
		list = append(list, c.Decide(p))
	}
	return list
}
