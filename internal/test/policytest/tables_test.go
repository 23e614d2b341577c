// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"
	"testing"
)

// TestTablesTellPlantedBugs: the tables would not hold for an oracle with one of the planted bugs.
// Bugs that need a change are left to TestPlantedBugsAreFound.
func TestTablesTellPlantedBugs(t *testing.T) {
	rows := slices.Concat(selectionRows, peerRows, portRows, trafficRows, tierRows, clusterPeerRows)
	for _, name := range sortedNames(plantedBugs) {
		newEngine := plantedBugs[name]
		if _, ok := newEngine().(*late); ok {
			continue
		}
		if !slices.ContainsFunc(rows, func(r row) bool { return tells(t, newEngine(), r) }) {
			t.Errorf("no row tells: %s", name)
		}
	}
}

// tells whether the engine answers a probe of the row otherwise than the row.
func tells(t *testing.T, e Engine, r row) bool {
	t.Helper()
	if err := e.Load(townWith(t, r.policies)); err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(r.probes, func(text string) bool {
		p, want := parseProbe(t, text)
		allowed, _, err := e.Allows(p)
		return err != nil || allowed != want
	})
}
