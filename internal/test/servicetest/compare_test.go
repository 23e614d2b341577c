// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// right is an engine that is the oracle. A test makes it wrong by its functions.
type right struct {
	h      history
	now    Cluster
	load   func([]Flow) ([]Flow, error)
	decide func(Answer) (Answer, error)
	checks func([]Check) []Check
}

func (r *right) Load(c Cluster) ([]Flow, error) {
	r.now = c
	if r.h.memories == nil {
		r.h.memories = make(map[memory]side)
	}
	r.h.forget(c)
	flows := r.h.changedFlows(c)
	if r.load != nil {
		return r.load(flows)
	}
	return flows, nil
}

func (r *right) Decide(p Packet) (Answer, error) {
	a := r.now.Decide(p, r.h.remembers(p))
	if r.decide != nil {
		return r.decide(a)
	}
	return a, nil
}

func (r *right) Remember(p Packet, to netip.AddrPort) {
	r.h.memories[memory{p, to}] = r.now.sideOf(p.From)
}

func (r *right) Checks() []Check {
	if r.checks != nil {
		return r.checks(r.now.Checks())
	}
	return r.now.Checks()
}

// Compare finds nothing wrong with a right engine.
func TestOracleAgreesWithItself(t *testing.T) {
	Compare(t, func() Engine { return new(right) }, Plan{Tables: 60})
}

// What a person needs is in the answer of Find: the seed, what differs, and the state.
func TestDifferences(t *testing.T) {
	for want, e := range map[string]*right{
		"Load: no memory":                   {load: func([]Flow) ([]Flow, error) { return nil, errors.New("no memory") }},
		"flows to compare: got [], want [{": {load: func([]Flow) ([]Flow, error) { return nil, nil }},
		"TCP: no answer":                    {decide: func(Answer) (Answer, error) { return Answer{}, errors.New("no answer") }},
		"got pass [], affinity 0 s, want ":  {decide: func(Answer) (Answer, error) { return Answer{What: "pass"}, nil }},
		"affinity 0 s, want endpoints [":    {decide: func(a Answer) (Answer, error) { a.Seconds = 0; return a, nil }},
		"want endpoints [": {decide: func(a Answer) (Answer, error) {
			a.To = slices.Clone(a.To)
			for i := range a.To {
				a.To[i].Masquerade = false
			}
			return a, nil
		}},
		"health checks: got [], want [": {checks: func([]Check) []Check { return nil }},
	} {
		wrong, tables := Find(func() Engine { e.h.memories, e.h.flows = nil, nil; return e }, Plan{Seed: 1, Tables: 100})
		if !strings.Contains(wrong, want) || !strings.Contains(wrong, fmt.Sprint("PATCHBAY_SEED=", 1+(tables-1)/6)) || !strings.Contains(wrong, `"services":`) {
			t.Errorf("want %q, found in table %d:\n%s", want, tables, wrong)
		}
	}
}

// Bad addresses in the form of old objects are what they were meant to be.
func TestRead(t *testing.T) {
	for text, want := range map[string]string{"010.96.000.1": "10.96.0.1", "10.0.0.0": "10.0.0.0", "fd00::1": "fd00::1", "x": "invalid IP", "": "invalid IP"} {
		if got := read(text).String(); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
	if got := fmt.Sprint(readRanges([]string{" 10.0.1.7/16 ", "x", "fd00::1/64"})); got != "[10.0.0.0/16 fd00::/64]" {
		t.Errorf("got %s", got)
	}
}
