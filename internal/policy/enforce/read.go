// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// read returns what the kernel has. Elements are read when they are compared.
func read(fw *nft.Conn) (*state, error) {
	s := &state{chains: make(map[string]bool), counters: make(map[string]bool), sets: make(map[string]bool)}
	sets, counters, err := fw.Policies()
	if err != nil {
		return nil, err
	}
	for _, name := range sets {
		s.sets[name] = true
	}
	for _, name := range counters {
		s.counters[name] = true
	}
	t, err := fw.ReadTable(nftables.TableFamilyINet, nft.TableName)
	if err != nil {
		return nil, err
	}
	k := kernel{t, make(map[string]nft.Chain)}
	for _, ch := range k.policies() {
		s.chains[ch.Name], k.chains[ch.Name] = true, ch
	}
	s.same, s.elements = k.same, k.elements
	s.version, err = fw.ReadPolicyBase()
	s.base = s.version > 0 || s.hasBase()
	return s, err
}

// hasBase reports whether the kernel has a part of what belongs to the base chains.
func (s *state) hasBase() bool {
	base := stateOf(&policy.Program{}, true)
	in := func(have map[string]bool) func(string) bool { return func(name string) bool { return have[name] } }
	return slices.ContainsFunc(slices.Collect(maps.Keys(base.chains)), in(s.chains)) || slices.ContainsFunc(slices.Collect(maps.Keys(base.sets)), in(s.sets))
}

// kernel reads parts of our table. The table is nil if there is none.
type kernel struct {
	table  *nft.Table
	chains map[string]nft.Chain
}

// policies returns the chains of policies. Those that check sources stay without policies.
func (k kernel) policies() []nft.Chain {
	if k.table == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(k.table.Chains), func(ch nft.Chain) bool { return !nft.OfPolicies(ch.Name) || nft.OfSources(ch.Name) })
}

func (k kernel) same(chain string, lines []line) bool {
	rules := k.table.Rules[chain]
	return k.atHook(chain) && slices.EqualFunc(rules, lines, func(r nft.Rule, l line) bool { return r.Is(l.exprs()) })
}

// atHook reports whether a chain is at its hook, and does not drop by policy.
func (k kernel) atHook(name string) bool {
	have, want := k.chains[name], newChain(name)
	if !isBase(name) || !have.Base {
		return have.Base == isBase(name)
	}
	return have.Hook == *want.Hooknum && have.Prio == int32(*want.Priority) && !have.Drops
}

func (k kernel) elements(set string) ([]element, error) {
	members, err := k.table.Members(set)
	if err != nil {
		return nil, err
	}
	out := make([]element, 0, len(members))
	for _, m := range members {
		if e, ok := elementOf(m); ok {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, element.compare)
	return out, nil
}

// elementOf reads an element of addresses or of ports.
func elementOf(m nft.Member) (e element, ok bool) {
	if first, last, ok := portRange(m); ok {
		return element{ports: [2]uint16{first, last}}, true
	}
	first, ok1 := netip.AddrFromSlice(m.Low)
	last, ok2 := netip.AddrFromSlice(m.High)
	e = element{first: first, last: last}
	if m.Verdict != nil {
		e.chain = m.Verdict.Chain
	}
	return e, ok1 && ok2
}

// portRange reads an element of a set of ports.
func portRange(m nft.Member) (first, last uint16, ok bool) {
	if len(m.Low) != 2 || len(m.High) != 2 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(m.Low), binary.BigEndian.Uint16(m.High), true
}
