// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

// TestLent changes all objects and attachments while a program uses a state. The state stays as it
// was, and the next one has the changes.
func TestLent(t *testing.T) {
	for seed := range uint64(20) {
		g := policytest.NewGenerator(seed, policytest.Small)
		c := New("node1")
		before := objectsOf(t, g.Cluster)
		for k := range kinds {
			deliverList(t, c, k, before[k])
		}
		if seed%2 == 1 {
			c.Attach([]Attached{attached("new", "u-new", "10.99.0.1", policy.Label{Key: "app", Value: "new"})})
		}
		var s policy.State
		if !c.state(&s) {
			t.Fatal("not all kinds have been listed")
		}
		pods, text := slices.Clone(s.Pods), policy.Compile(&s).String()
		r := rand.New(rand.NewPCG(seed, 0))
		for range 10 {
			g.Change()
			after := objectsOf(t, g.Cluster)
			for _, e := range between(before, after, r) {
				e.send(t, c)
			}
			before = after
		}
		c.Attach(nil)
		if !slices.EqualFunc(pods, s.Pods, func(a, b policy.Pod) bool { return equalPods(&a, &b) }) || policy.Compile(&s).String() != text {
			t.Fatalf("seed %d: a state in use has changed", seed)
		}
		c.giveBack()
		compare(t, seed, c, before)
	}
}

// If nothing changes, a state is not a copy, even with attachments of pods that the API shows.
func TestLentUnchanged(t *testing.T) {
	c := listed(t, "n1")
	set(t, c, Pods, apiPod("n1", "a", "u-a", "10.1.1.1"))
	c.Attach([]Attached{attached("a", "u-a", "10.1.1.1")})
	var s policy.State
	if c.state(&s); &s.Pods[0] != &c.pods.values[0] {
		t.Error("the state has a copy of the pods")
	}
	c.Attach([]Attached{attached("a", "u-a", "10.1.1.2")})
	if c.state(&s); &s.Pods[0] == &c.pods.values[0] || len(c.pods.values[0].Addresses) != 1 {
		t.Error("the state has changed the pods")
	}
}
