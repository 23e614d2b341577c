// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

// In random clusters, a change concerns one end of each connection that was allowed before it and is denied after it.
func TestRandomChangesConcern(t *testing.T) {
	seed, _ := draw.Seed(t)
	denied := 0
	for n := range policytest.Tables(t, 60, 400) {
		g := policytest.NewGenerator(seed+uint64(n), policytest.Small)
		var was [2]*policy.Program
		for range 4 {
			left := g.Addresses()
			if was[0] != nil {
				g.Change()
			}
			s, err := stateOfCluster(g.Clone())
			must(t, err)
			for i := range was {
				is := compileFor(&s, i)
				if was[i] != nil {
					denied += concernsDenied(t, was[i], is, g.Probes(left...))
				}
				was[i] = is
			}
			if t.Failed() {
				t.Logf("%s=%d go test -run %s", draw.SeedEnv, seed+uint64(n), t.Name())
				return
			}
		}
	}
	if denied == 0 {
		t.Error("no change denied anything")
	}
}

// concernsDenied checks a change by probes, and returns how many it denies.
func concernsDenied(t *testing.T, was, is *policy.Program, probes []policytest.Probe) (denied int) {
	t.Helper()
	addrs := concernedBy(t, was, is)
	for _, p := range probes {
		proto, port := packetOf(p)
		before, once := was.Allows(p.From, p.To, proto, port)
		after, why := is.Allows(p.From, p.To, proto, port)
		if before != policy.Accept || after == policy.Accept || slices.Contains(was.Node, p.From) { // a node's own packets are not judged
			continue
		}
		if denied++; !addrs[p.From] && !addrs[p.To] {
			t.Errorf("%v was allowed, is denied, and concerns nobody:\n%s\n%s", p, once, why)
			return denied
		}
	}
	return denied
}
