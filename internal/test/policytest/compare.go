// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"io"
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// Engine is what Compare tests. Compare loads one state of a cluster after the other into the same
// engine, and asks about probes after each.
type Engine interface {
	// Load makes this the state of the cluster.
	Load(Cluster) error
	// Allows tells whether a probe passes, and which policy decided: NAMESPACE/NAME, NAME of a
	// cluster policy, or "" if no policy did or the engine does not know. An engine that is an
	// io.Closer is closed after its last probe.
	Allows(Probe) (allowed bool, policy string, err error)
}

// Plan says what Compare does.
type Plan struct {
	Seed   uint64 // determines all clusters and probes; 0 stands for that of internal/test/draw
	Tables int    // how many truth tables to compare
	States int    // tables of one cluster, between which it changes; 0 stands for 4
	Probes int    // random probes of each table; 0 stands for all
	Shape  Shape  // the zero Shape stands for Small
}

func (p Plan) complete() Plan {
	if p.States == 0 {
		p.States = 4
	}
	if p.Shape == (Shape{}) {
		p.Shape = Small
	}
	return p
}

// Mismatch is a question to which an engine's answer is wrong.
type Mismatch struct {
	Seed uint64 // of the plan that finds the mismatch in its first cluster
	Case Case
	Got  string // what the engine answered
	Want Verdict
}

// Compare fails the test if the engine and the oracle differ. It then prints the smallest case that
// it finds, which Replay repeats.
func Compare(t testing.TB, newEngine func() Engine, plan Plan) {
	t.Helper()
	plan = seeded(t, plan)
	m, tables := Find(newEngine, plan)
	if m == nil {
		t.Logf("seed %d: %d truth tables without a mismatch", plan.Seed, tables)
		return
	}
	small := Shrink(m.Case, newEngine)
	t.Fatalf("table %d differs: %s=%d finds it first; the smallest case is\n%s\n%s",
		tables, draw.SeedEnv, m.Seed, small, Ask(newEngine, small))
}

// Find returns the first mismatch, if there is one, and the number of tables up to it.
func Find(newEngine func() Engine, plan Plan) (*Mismatch, int) {
	plan = plan.complete()
	tables := 0
	for seed := plan.Seed; tables < plan.Tables; seed++ {
		m, n := findInHistory(newEngine(), plan, seed, plan.Tables-tables)
		tables += n
		if m != nil {
			return m, tables
		}
	}
	return nil, tables
}

// findInHistory compares the states of one cluster, at most so many.
func findInHistory(e Engine, plan Plan, seed uint64, most int) (*Mismatch, int) {
	defer closeEngine(e)
	g := NewGenerator(seed, plan.Shape)
	var history []Cluster
	var left []netip.Addr // the addresses of the state before
	for n := range min(plan.States, most) {
		if n > 0 {
			left = g.Addresses()
			g.Change()
		}
		history = append(history, g.Clone())
		if m := findInTable(e, g.Clone(), g.some(g.Probes(left...), plan.Probes)); m != nil {
			m.Seed, m.Case.States = seed, history
			return m, n + 1
		}
	}
	return nil, min(plan.States, most)
}

func findInTable(e Engine, c Cluster, probes []Probe) *Mismatch {
	if err := e.Load(c.Clone()); err != nil {
		return &Mismatch{Got: fmt.Sprintf("Load: %v", err)}
	}
	for _, p := range probes {
		if m := wrong(e, c, p); m != nil {
			return m
		}
	}
	return nil
}

// wrong asks about one probe, and returns what is wrong with the answer.
func wrong(e Engine, c Cluster, p Probe) *Mismatch {
	want := c.Decide(p)
	allowed, policy, err := e.Allows(p)
	m := &Mismatch{Case: Case{Probe: p}, Want: want, Got: fmt.Sprintf("allowed %v by %q", allowed, policy)}
	switch {
	case err != nil:
		m.Got = fmt.Sprintf("Allows: %v", err)
	case allowed == want.Allowed && (policy == "" || want.MayName(policy)):
		return nil
	}
	return m
}

// some returns all probes, or so many random ones.
func (g *Generator) some(probes []Probe, most int) []Probe {
	if most == 0 || most >= len(probes) {
		return probes
	}
	g.Shuffle(len(probes), func(i, j int) { probes[i], probes[j] = probes[j], probes[i] })
	return probes[:most]
}

// Ask takes a new engine through the states of a case, and returns what is wrong with its answer
// about the last state, or nil.
func Ask(newEngine func() Engine, c Case) *Mismatch {
	e := newEngine()
	defer closeEngine(e)
	if len(c.States) == 0 {
		return nil
	}
	for _, state := range c.States {
		if err := e.Load(state.Clone()); err != nil {
			return &Mismatch{Case: c, Got: fmt.Sprintf("Load: %v", err)}
		}
	}
	if !c.Probe.From.IsValid() {
		return nil // the case was about Load
	}
	return wrong(e, c.States[len(c.States)-1], c.Probe)
}

func (m *Mismatch) String() string {
	if m == nil {
		return "a new engine answers as the oracle"
	}
	return fmt.Sprintf("the engine says: %s\nthe oracle says: allowed %v (egress %s, ingress %s)", m.Got, m.Want.Allowed, m.Want.Egress, m.Want.Ingress)
}

func (s Side) String() string {
	if len(s.By) == 0 {
		return "free"
	}
	return fmt.Sprintf("%v by any of %q", s.Allowed, s.By)
}

func closeEngine(e Engine) {
	if c, ok := e.(io.Closer); ok {
		if err := c.Close(); err != nil {
			panic(fmt.Sprintf("close the engine: %v", err)) // what it leaves behind would spoil the next
		}
	}
}
