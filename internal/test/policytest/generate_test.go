// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestGeneratorIsValid: the API server would store each cluster, and the seed determines it.
func TestGeneratorIsValid(t *testing.T) {
	for seed := range uint64(300) {
		g, again := NewGenerator(seed, Small), NewGenerator(seed, Small)
		for range 6 {
			if !valid(Case{States: []Cluster{g.Cluster}}) {
				t.Fatalf("seed %d is not valid:\n%s", seed, Case{States: []Cluster{g.Cluster}})
			}
			g.Change()
			again.Change()
		}
		if !reflect.DeepEqual(g.Cluster, again.Cluster) {
			t.Fatalf("seed %d gives two clusters", seed)
		}
	}
}

// TestGeneratorReachesBothAnswers: policies decide many probes, and neither answer is rare. A
// state differs from the one before.
func TestGeneratorReachesBothAnswers(t *testing.T) {
	var all, allowed, denied, changed, states int
	for seed := range uint64(60) {
		g := NewGenerator(seed, Small)
		for range 3 {
			before := answers(g.Cluster)
			for _, v := range before {
				all++
				switch by := len(v.Egress.By) + len(v.Ingress.By); {
				case !v.Allowed:
					denied++
				case by > 0:
					allowed++
				}
			}
			g.Change()
			states++
			if !reflect.DeepEqual(before, answers(g.Cluster)) {
				changed++
			}
		}
	}
	t.Logf("%d probes: policies allow %d%% and deny %d%%; %d of %d changes change an answer", all, 100*allowed/all, 100*denied/all, changed, states)
	if allowed*10 < all || denied*5 < all || denied*3 > all*2 || changed*2 < states {
		t.Error("the generator draws too little that decides")
	}
}

// TestSomeProbes: a sample is of the size asked for, and of the table.
func TestSomeProbes(t *testing.T) {
	g := NewGenerator(rand.Uint64(), Small)
	table := g.Probes()
	for most, want := range map[int]int{0: len(table), 7: 7, len(table) + 1: len(table)} {
		if got := g.some(g.Probes(), most); len(got) != want {
			t.Errorf("%d probes of %d, at most %d", len(got), len(table), most)
		}
	}
}
