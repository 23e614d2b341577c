// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package policies compares our programs of network policies with those of others: kube-network-policies
// judges the same packets (test/witness).
package policies

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/policytest"
	"github.com/patchbay-net/patchbay/test/e2e/gate"
)

func TestMain(m *testing.M) {
	gate.Enter()
	os.Exit(m.Run())
}

// TestWitness: three judges, of which none shares code with another, agree about each packet. They are
// the compiled programs, the oracle and kube-network-policies.
func TestWitness(t *testing.T) {
	witness := policytest.NewWitness(t)
	policytest.Compare(t, func() policytest.Engine { return &beside{witness: witness} },
		policytest.Plan{Tables: policytest.Tables(t, 60, 150), Probes: 300})
	t.Logf("%d packets, of which the witness is excused for %v", witness.Asked, witness.Excused)
}

// TestExcusesAreNeeded: each excuse of the witness is needed, by one of the same clusters every time. If a
// new version of it needs one no more, the excuse must go.
func TestExcusesAreNeeded(t *testing.T) {
	witness := policytest.NewWitness(t)
	for seed := uint64(1); seed <= 300 && slices.Contains(slices.Collect(maps.Values(witness.Excused)), 0); seed++ {
		m, _ := policytest.Find(func() policytest.Engine { return witness }, policytest.Plan{Seed: seed, Tables: 4, Probes: 300})
		if m != nil {
			t.Fatalf("seed %d: %s", seed, m)
		}
	}
	for reason, times := range witness.Excused {
		if times == 0 {
			t.Errorf("in %d packets the witness never needed the excuse %q", witness.Asked, reason)
		}
	}
}

// beside is the programs, which must answer as the witness does, if it has no excuse.
type beside struct {
	programs
	witness *policytest.Witness
}

func (b *beside) Load(c policytest.Cluster) error {
	return errors.Join(b.programs.Load(c), b.witness.Load(c))
}

func (b *beside) Allows(p policytest.Probe) (allowed bool, by string, err error) {
	allowed, by, err = b.programs.Allows(p)
	if err != nil {
		return false, "", err
	}
	theirs, excuse, err := b.witness.Says(p)
	if err == nil && excuse == "" && theirs != allowed {
		err = fmt.Errorf("the programs say %t, and kube-network-policies %t", allowed, theirs)
	}
	return allowed, by, err
}
