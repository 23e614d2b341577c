// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package leak

import (
	"fmt"
	"slices"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// ruleset lists every nftables table with its chains, rules, sets and elements.
func ruleset() (State, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	defer c.CloseLasting() //nolint:errcheck // read only
	tables, err := c.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // it only reads
	var s State
	for _, t := range tables {
		s = append(s, line("nft table", nft.FamilyName(t.Family), t.Name))
		sets, err := elements(c, t)
		if err != nil {
			return nil, err
		}
		rules, err := chains(fw, t)
		if err != nil {
			return nil, err
		}
		s = slices.Concat(s, sets, rules)
	}
	return s, nil
}

// elements lists the sets and maps of one table and their elements. It leaves out anonymous sets,
// which belong to their rule.
func elements(c *nftables.Conn, t *nftables.Table) (State, error) {
	sets, err := c.GetSets(t)
	if err != nil {
		return nil, fmt.Errorf("list sets of %s: %w", t.Name, err)
	}
	var s State
	for _, set := range sets {
		if set.Anonymous {
			continue
		}
		name := line(nft.FamilyName(t.Family), t.Name, set.Name)
		s = append(s, "nft set "+name)
		in, err := c.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("list elements of %s: %w", name, err)
		}
		for _, e := range in {
			if !e.IntervalEnd {
				s = append(s, line("nft element", name, fmt.Sprintf("%x : %x", e.Key, e.Val), e.Comment))
			}
		}
	}
	return s, nil
}

// chains lists the chains of one table and their rules. A rule is its expressions without
// its counters, which the kernel changes.
func chains(fw *nft.Conn, t *nftables.Table) (State, error) {
	table, err := fw.ReadTable(t.Family, t.Name)
	if err != nil || table == nil {
		return nil, err
	}
	var s State
	for _, ch := range table.Chains {
		name := line(nft.FamilyName(t.Family), t.Name, ch.Name)
		s = append(s, "nft chain "+name)
		for _, r := range table.Rules[ch.Name] {
			s = append(s, line("nft rule", name, r))
		}
	}
	return s, nil
}
