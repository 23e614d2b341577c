// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"slices"
	"testing"
)

// ownFaults are the planted bugs that the witness has itself, or that it shares for another reason in
// excuses. It cannot tell them.
var ownFaults = []string{
	"a field of a later version is ignored", "an unknown peer is nobody",
	"a finished pod keeps its address", "finished pods are peers",
	"a peer of nodes has only the API's addresses", "a pod does not reach itself", "ports of sidecars do not count", "the pod's own node is the world",
}

// TestExcusesAreNarrow: of the bugs that the tables tell, the excuses of the witness hide those that it has
// itself, and no others.
func TestExcusesAreNarrow(t *testing.T) {
	rows := slices.Concat(selectionRows, peerRows, portRows, trafficRows, tierRows, clusterPeerRows)
	for _, name := range sortedNames(plantedBugs) {
		if _, ok := plantedBugs[name]().(*late); ok {
			continue
		}
		told := slices.ContainsFunc(rows, func(r row) bool { return tells(t, &unexcused{Engine: plantedBugs[name]()}, r) })
		if told == slices.Contains(ownFaults, name) {
			t.Errorf("%s: the witness could tell: %t", name, told)
		}
	}
}

// unexcused is an engine whose faults can only be seen where the witness has no excuse.
type unexcused struct {
	Engine
	loaded Cluster
}

func (u *unexcused) Load(c Cluster) error {
	u.loaded = c.Clone()
	return u.Engine.Load(c)
}

func (u *unexcused) Allows(p Probe) (allowed bool, policy string, err error) {
	if u.loaded.excuse(p) != "" {
		return u.loaded.Decide(p).Allowed, "", nil
	}
	return u.Engine.Allows(p)
}
