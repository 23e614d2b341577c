// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func masqueraded(address string) []Element {
	return Masqueraded(netip.MustParsePrefix(address), Comment(testOwner, "pods", "c1", "eth0"))
}

// TestLengthsAtOnce: several processes need the first set for a prefix length at the same time, and
// one of them creates the set.
func TestLengthsAtOnce(t *testing.T) {
	first := open(t)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range byte(8) {
		wg.Go(func() {
			c := Open(dir)
			defer c.Close() //nolint:errcheck // a test
			c.Add(Masqueraded(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 2, i + 1}), 24), "")...)
			if err := c.Commit(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if rules := nftTool(t, "list", "chain", "inet", TableName, chainSameNet); strings.Count(rules, "accept") != 1 {
		t.Errorf("not one rule: %s", rules)
	}
	if list, err := first.List("samenet4_24"); err != nil || len(list) != 8 {
		t.Errorf("%d elements, %v", len(list), err)
	}
}

// TestLengthsVerified: repair finds and restores a changed rule for a length, and keeps its
// elements and their set.
func TestLengthsVerified(t *testing.T) {
	c := open(t)
	c.Add(masqueraded("10.1.2.3/24")...)
	c.Add(masqueraded("fd00::3/64")...)
	c.Add(Neighbours(netip.MustParsePrefix("10.1.2.3/20"), ""))
	commit(t, c)
	before := nftTool(t, "list", "ruleset")
	nftTool(t, "flush", "chain", "inet", TableName, chainSameNet)
	nftTool(t, "add", "rule", "inet", TableName, chainNeighbours, "accept")
	if diffs, err := c.Verify(); err != nil || len(diffs) != 3 {
		t.Errorf("%q, %v", diffs, err)
	}
	if err := c.Rebuild(context.Background()); err != nil {
		t.Fatal(err)
	}
	if diffs, err := c.Verify(); err != nil || len(diffs) != 0 {
		t.Errorf("%q, %v", diffs, err)
	}
	if after := nftTool(t, "list", "ruleset"); after != before {
		t.Errorf("rebuilt:\n%s\nbefore:\n%s", after, before)
	}
}

// TestLengthsToldApart: networks of different lengths may begin with the same address, and
// each keeps its own elements.
func TestLengthsToldApart(t *testing.T) {
	if a, b := masqueraded("10.0.0.5/24")[1], masqueraded("10.0.0.5/8")[1]; a.Set == b.Set || string(a.Key) != string(b.Key) {
		t.Errorf("%s, %s", a, b)
	}
	for _, name := range [...]string{"samenet4_0", "samenet4_33", "samenet6_129", "samenet4_024", "samenet4", "samenet4_x", "neighbours4_-1"} {
		if _, ok := specOf(name); ok {
			t.Errorf("%s is a set", name)
		}
	}
}

// TestFromSchema6: after an upgrade, an internal bridge forwards within a network that spans hosts, and nothing masquerades
// whole networks. The table also has the objects that it kept from schema 1.
func TestFromSchema6(t *testing.T) {
	nettest.Need(t, nettest.BackRoutesAtForward()) // of the spans
	c := open(t)
	nftTool(t, "-f", "testdata/schema6.nft")
	if old, err := c.Outdated(); err != nil || !strings.Contains(old, "schema 6") {
		t.Errorf("%q, %v", old, err)
	}
	subnet := netip.MustParsePrefix("10.200.0.0/16")
	c.Add(append(Internal("cni3", "lan"), Span(subnet, 24, "lan"), Divided(subnet, netip.MustParsePrefix("10.201.0.0/16"), 24, "lan"))...)
	commit(t, c)
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("%q, %v", diffs, err)
	}
	for chain, want := range map[string]string{
		chainInternal: "jump span", chainSpan: "ip saddr . ip daddr @span4_24 goto spanned", chainClosed: "ip saddr . ip daddr @divided4_24 jump divided",
	} {
		if rules := nftTool(t, "list", "chain", "inet", TableName, chain); !strings.Contains(rules, want) {
			t.Errorf("%q is missing:\n%s", want, rules)
		}
	}
	for _, e := range append(attachment(), network()...) {
		mustGet(t, c, e)
	}
	withoutRanges(t)
}

// withoutRanges checks that the table has nothing that masquerades whole networks.
func withoutRanges(t *testing.T) {
	t.Helper()
	table := nftTool(t, "list", "table", "inet", TableName)
	for _, gone := range []string{"ranges", "set masq4", "set masq6", "set nomasq4", "set nomasq6", "set hairpin4", "set hairpin6"} {
		if strings.Contains(table, gone) {
			t.Errorf("%q is left:\n%s", gone, table)
		}
	}
}

// TestFromSchema7: an upgrade, by a transaction or by Rebuild, makes the table that a new node has.
func TestFromSchema7(t *testing.T) {
	for name, upgrade := range map[string]func(*Conn) error{
		"Commit": func(c *Conn) error {
			c.Remove(GuardLoopback("cni0", "pods"))
			if err := c.Commit(t.Context()); err != nil {
				return err
			}
			c.Add(GuardLoopback("cni0", "pods"))
			return c.Commit(t.Context())
		},
		"Rebuild": func(c *Conn) error { return c.Rebuild(t.Context()) },
		"Rebuild without the chain": func(c *Conn) error {
			nftTool(t, "flush chain inet patchbay postrouting; delete chain inet patchbay ranges")
			return c.Rebuild(t.Context())
		},
		"Rebuild without the number": func(c *Conn) error {
			nftTool(t, "flush map inet patchbay schema")
			return c.Rebuild(t.Context())
		},
	} {
		c := open(t)
		c.Add(network()...)
		commit(t, c)
		want := sorted(nftTool(t, "list", "table", "inet", TableName))
		asSchema7(t)
		if err := upgrade(c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := sorted(nftTool(t, "list", "table", "inet", TableName)); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
		if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
			t.Errorf("%s: %q, %v", name, diffs, err)
		}
	}
}

// asSchema7 adds the objects that a table of schema 7 has in addition to ours.
func asSchema7(t *testing.T) {
	t.Helper()
	table := "inet " + TableName
	commands := []string{
		"add chain " + table + " ranges",
		"add rule " + table + ` postrouting jump ranges comment "attachments of earlier releases"`,
		"flush map " + table + " schema", "add element " + table + " schema { 0 : 7 }",
	}
	for version, typ := range map[string]string{"4": "ipv4_addr", "6": "ipv6_addr"} {
		commands = append(commands, fmt.Sprintf("add set %s nomasq%s { type %s . %[3]s; flags interval,timeout; }", table, version, typ))
	}
	nftTool(t, strings.Join(commands, "; "))
}
