// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package leak

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

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
	var s State
	for _, t := range tables {
		s = append(s, line("nft table", nft.FamilyName(t.Family), t.Name))
		sets, err := elements(c, t)
		if err != nil {
			return nil, err
		}
		s = append(s, sets...)
	}
	rules, err := chains(c)
	return append(s, rules...), err
}

// elements lists the sets and maps of one table and their elements; anonymous sets belong
// to their rule.
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

// chains lists every chain and its rules.
func chains(c *nftables.Conn) (State, error) {
	all, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	var s State
	for _, ch := range all {
		name := line(nft.FamilyName(ch.Table.Family), ch.Table.Name, ch.Name)
		s = append(s, "nft chain "+name)
		texts, err := rules(c, ch)
		if err != nil {
			return nil, fmt.Errorf("list rules of %s: %w", name, err)
		}
		for _, text := range texts {
			s = append(s, line("nft rule", name, text))
		}
	}
	return s, nil
}

// rules lists the rules of one chain. The library cannot list `ct original`, which our own
// table has.
func rules(c *nftables.Conn, ch *nftables.Chain) (out []string, err error) {
	if ch.Table.Name == nft.TableName {
		fw := nft.Open("")
		defer fw.Close() //nolint:errcheck // it only read
		list, err := fw.ListRules(ch.Table.Family, ch.Table.Name, ch.Name)
		for _, r := range list {
			out = append(out, r.String())
		}
		return out, err
	}
	list, err := c.GetRules(ch.Table, ch)
	for _, r := range list {
		out = append(out, rule(r))
	}
	return out, err
}

// rule writes a rule's expressions without its counters, which the kernel changes.
func rule(r *nftables.Rule) string {
	var b strings.Builder
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter:
			b.WriteString("counter ")
		case *expr.Cmp:
			fmt.Fprintf(&b, "cmp(%d %x) ", e.Op, e.Data)
		case *expr.Meta:
			fmt.Fprintf(&b, "meta(%d) ", e.Key)
		case *expr.Payload:
			fmt.Fprintf(&b, "header(%d+%d/%d) ", e.Base, e.Offset, e.Len)
		case *expr.Bitwise:
			fmt.Fprintf(&b, "mask(%x) ", e.Mask)
		case *expr.Immediate:
			fmt.Fprintf(&b, "value(%x) ", e.Data)
		case *expr.Match:
			fmt.Fprintf(&b, "match(%s %s) ", e.Name, info(e.Info))
		case *expr.Target:
			fmt.Fprintf(&b, "target(%s %s) ", e.Name, info(e.Info))
		case *expr.Verdict:
			fmt.Fprintf(&b, "verdict(%d %s) ", e.Kind, e.Chain)
		default:
			name := strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr.")
			fmt.Fprintf(&b, "%s%s ", strings.ToLower(name), strings.TrimPrefix(fmt.Sprintf("%+v", e), "&"))
		}
	}
	return strings.TrimSpace(b.String())
}

// info writes the data of an iptables match or target: a comment as text.
func info(i xt.InfoAny) string {
	switch i := i.(type) {
	case *xt.Comment:
		return string(*i)
	case *xt.Unknown:
		return strings.TrimRight(string(*i), "\x00")
	}
	return strings.TrimPrefix(fmt.Sprintf("%+v", i), "&")
}
