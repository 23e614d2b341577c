// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/servicetest"
)

// unnoticed are rules without which the oracle's packets go the same way.
var unnoticed = map[string]string{
	"refuse: 06 reject":              "an error of ICMP refuses, too",
	"fromnode6: 0a @pods6 immediate": "no IPv6 address of the node is a pod's there",
}

// TestEachRuleCounts leaves out one rule after the other. The oracle must notice each.
func TestEachRuleCounts(t *testing.T) {
	kinds := make(map[string]bool)
	collect := &engine{kernel: newKernel(), lacks: func(kind string) bool { kinds[kind] = true; return false }}
	servicetest.Find(func() servicetest.Engine { return collect.fresh() }, servicetest.Plan{Seed: 1, Tables: 120, Packets: 1})
	maps.DeleteFunc(kinds, func(kind string, _ bool) bool { return unnoticed[kind] != "" })
	all := slices.Sorted(maps.Keys(kinds))
	seed, _ := draw.Seed(t)
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, kind := range all[:min(len(all), draw.Number(t, "PATCHBAY_SERVICE_RULES", 2, 1000))] {
		bad := &engine{kernel: newKernel(), lacks: func(k string) bool { return k == kind }}
		if wrong, tables := servicetest.Find(func() servicetest.Engine { return bad.fresh() }, servicetest.Plan{Seed: 1, Tables: 1500}); wrong == "" {
			t.Errorf("not noticed in %d tables: no rule %s", tables, kind)
		} else {
			t.Logf("noticed in table %3d: no rule %s", tables, kind)
		}
	}
}

// fresh returns an engine that has nothing, and lacks the same rules.
func (e *engine) fresh() *engine { return &engine{kernel: newKernel(), lacks: e.lacks} }

// leaveOut removes the rules that the engine lacks.
func (e *engine) leaveOut(rules map[string][]nft.Rule) {
	for chain, list := range rules {
		if e.lacks == nil || chain == "output" || chain == "input" || len(list) > 1 && strings.Contains(chain, "draw") {
			continue // not walked, or one of the rules that draw again
		}
		rules[chain] = slices.DeleteFunc(list, func(r nft.Rule) bool { return e.lacks(kindOf(r)) })
	}
}

// kindOf describes a rule without the size of its sets: "frontends4: @class4_ -> jump".
func kindOf(r nft.Rule) string {
	unsized := func(name string) string { return strings.TrimRight(name, "0123456789") }
	text := unsized(r.Chain) + ":"
	if strings.HasSuffix(r.Chain, "4") || strings.HasSuffix(r.Chain, "6") {
		text = r.Chain + ":"
	}
	for _, e := range r.Exprs {
		switch e.Name {
		case "lookup":
			set := e.Text(unix.NFTA_LOOKUP_SET)
			if strings.Contains(set, "_") {
				set = unsized(set)
			}
			text += " @" + set
		case "cmp":
			text += " " + string("0123456789abcdef"[e.Value(unix.NFTA_CMP_DATA)[0]>>4]) + string("0123456789abcdef"[e.Value(unix.NFTA_CMP_DATA)[0]&15])
		case "fib", "dynset", "nat", "masq", "reject", "immediate":
			text += " " + e.Name
		}
	}
	return text
}
