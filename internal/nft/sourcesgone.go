// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"slices"

	"github.com/google/nftables"
)

// DropSources returns the work that removes the check of sources from one table, with its elements. An ADD
// makes it again.
func DropSources(family nftables.TableFamily) Extra { return sourceDrop{family} }

type sourceDrop struct{ family nftables.TableFamily }

// String names the table.
func (x sourceDrop) String() string {
	return "stop checking the sources of pods in table " + FamilyName(x.family) + " " + TableName
}

// Plan finds out which of its objects exist.
func (x sourceDrop) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	sets, chains := sourceSetsOf(x.family), []string{chainSourcesTell, ChainForged, chainSourcesTo, chainSourcesOut, chainSourcesError, chainSourcesOther, chainSources}
	refs := make([]Ref, len(chains))
	for i, name := range chains {
		refs[i] = Ref{x.family, TableName, name}
	}
	there, err := c.ReadPresence(refs...)
	if err != nil {
		return nil, err
	}
	have, err := c.setNames(x.family)
	if err != nil {
		return nil, err
	}
	chains = kept(chains, func(i int) bool { return there[i].Found })
	gone := slices.DeleteFunc(setsCalled(sets), func(s setSpec) bool { return !slices.Contains(have, s.name) })
	counters, err := c.PolicyCounters()
	if err != nil || len(chains)+len(gone) == 0 {
		return nil, err
	}
	counted := x.family == nftables.TableFamilyINet && slices.ContainsFunc(counters, func(c Counter) bool { return c.Name == CountForged })
	return func(enc *nftables.Conn) error {
		t := layoutOf(x.family).table()
		dropObjects(enc, t, chains, gone)
		if counted {
			enc.DeleteObject(&nftables.CounterObj{Table: t, Name: CountForged})
		}
		if slices.Contains(chains, chainSourcesTell) { // the limit is as old as this chain
			enc.DeleteObject(tellLimit(t))
		}
		return nil
	}, nil
}

func setsCalled(names []string) (specs []setSpec) {
	for _, name := range names {
		s, _ := specOf(name)
		specs = append(specs, s)
	}
	return specs
}
