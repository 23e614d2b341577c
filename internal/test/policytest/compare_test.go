// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// mostTables bounds how long Compare may search for one bug.
const mostTables = 1000

// rareBugs need more than 80 tables, and most of the time of TestPlantedBugsAreFound. `make test` leaves
// them to TestTablesTellPlantedBugs, which finds all but the priorities.
var rareBugs = []string{
	"a cluster policy's named port is TCP", "an unknown peer is nobody", "cluster policies keep their priorities", "no policyTypes is both", "only the first except counts",
	"ports of init containers count",
}

func TestPlantedBugsAreFound(t *testing.T) {
	var needed []int
	for _, name := range sortedNames(plantedBugs) {
		if slices.Contains(rareBugs, name) && !draw.All(t) {
			continue
		}
		m, tables := Find(plantedBugs[name], Plan{Seed: 1, Tables: mostTables, Probes: 200})
		if m == nil {
			t.Errorf("not found in %d tables: %s", tables, name)
			continue
		}
		t.Logf("found in table %3d: %s", tables, name)
		needed = append(needed, tables)
	}
	slices.Sort(needed)
	t.Logf("%d bugs, median table %d, last table %d", len(needed), needed[len(needed)/2], needed[len(needed)-1])
}

func sortedNames(bugs map[string]func() Engine) []string {
	var names []string
	for name := range bugs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestOracleAgreesWithItself: Compare finds nothing wrong with a right engine.
func TestOracleAgreesWithItself(t *testing.T) {
	Compare(t, func() Engine { return &misread{} }, Plan{Tables: 40})
}

// refusing is an engine that fails.
type refusing struct {
	load, allows error
	name         string
}

func (r refusing) Load(Cluster) error { return r.load }

func (r refusing) Allows(Probe) (allowed bool, policy string, err error) {
	return true, r.name, r.allows
}

// TestFailuresAreMismatches: an engine that fails, or names a policy that did not decide, is wrong.
func TestFailuresAreMismatches(t *testing.T) {
	for want, e := range map[string]refusing{
		"Load: no memory":            {load: errors.New("no memory")},
		"Allows: no answer":          {allows: errors.New("no answer")},
		`allowed true by "ns1/none"`: {name: "ns1/none"},
	} {
		m, _ := Find(func() Engine { return e }, Plan{Seed: 1, Tables: 10})
		if m == nil || m.Got != want {
			t.Errorf("mismatch %v, want %s", m, want)
		}
	}
}

// closing counts how many of its kind are open.
type closing struct {
	misread
	open *int
}

func (c *closing) Close() error { *c.open--; return nil }

func TestEnginesAreClosed(t *testing.T) {
	open, made := 0, 0
	newEngine := func() Engine { open++; made++; return &closing{open: &open} }
	if m, _ := Find(newEngine, Plan{Seed: 1, Tables: 9}); m != nil || made != 3 || open != 0 {
		t.Errorf("mismatch %v, %d engines made, %d open; want 3 made for 4, 4 and 1 tables", m, made, open)
	}
}

// TestCompareSaysAll: what a person needs is in the failure: the seed, the case, both answers.
func TestCompareSaysAll(t *testing.T) {
	said := &saying{TB: t}
	func() {
		defer func() { recover() }() //nolint:errcheck // Fatalf of saying panics
		Compare(said, plantedBugs["except is ignored"], Plan{Seed: 1, Tables: mostTables})
	}()
	for _, want := range []string{"PATCHBAY_SEED=", `"except":`, `"probe":`, "the engine says: allowed true", "the oracle says: allowed false"} {
		if !strings.Contains(said.text, want) {
			t.Errorf("%q is missing in:\n%s", want, said.text)
		}
	}
	t.Log(said.text)
}

// saying catches what Compare reports.
type saying struct {
	testing.TB
	text string
}

func (s *saying) Fatalf(format string, args ...any) {
	s.text = fmt.Sprintf(format, args...)
	panic("fatal")
}
