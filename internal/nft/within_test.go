// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
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

// before4 returns the elements that tables before schema 4 had.
func before4(elems []Element) []Element {
	return slices.DeleteFunc(elems, func(e Element) bool {
		return slices.Contains([]string{SetEgress4, SetEgress6, SetExempt4, SetExempt6}, e.Set)
	})
}

// TestFromSchema1 runs this program on a table of schema 1 in use: its elements continue to work,
// and are removed with their attachments and networks.
func TestFromSchema1(t *testing.T) {
	c := open(t)
	nftTool(t, "-f", "testdata/schema1.nft")
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("an old table is no changed one: %q, %v", diffs, err)
	}
	c.Add(masqueraded("10.1.0.6/16")...)
	commit(t, c)
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("%q, %v", diffs, err)
	}
	for _, e := range before4(network()) {
		mustGet(t, c, e)
	}
	rules := nftTool(t, "list", "chain", "inet", TableName, chainPostrouting)
	mine, old := strings.Index(rules, "@"+SetMasqueraded4), strings.Index(rules, "jump "+chainRanges)
	if mine < 0 || old < mine {
		t.Errorf("a network's rule must not come before an attachment's:\n%s", rules)
	}
	if rules := nftTool(t, "list", "chain", "inet", TableName, chainRanges); !strings.Contains(rules, "@"+SetMasq4) {
		t.Errorf("a network is no longer masqueraded:\n%s", rules)
	}
	c.Remove(network()...)
	commit(t, c)
	for _, e := range network() {
		if left, err := c.List(e.Set); err != nil || len(left) > 0 {
			t.Errorf("%s has %v, %v", e.Set, left, err)
		}
	}
	mustGet(t, c, masqueraded("10.1.0.6/16")[0])
}

// TestFromSchema2: attachments of schema 2 are served and removed as before.
func TestFromSchema2(t *testing.T) {
	c := open(t)
	nftTool(t, "-f", "testdata/schema2.nft")
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("an old table is no changed one: %q, %v", diffs, err)
	}
	c.Add(Internal("cni2", "inner")...)
	commit(t, c)
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("%q, %v", diffs, err)
	}
	for _, e := range append(before4(append(attachment(), network()...)), Internal("cni2", "inner")...) {
		mustGet(t, c, e)
	}
	c.Remove(append(attachment(), network()...)...)
	commit(t, c)
	for _, e := range append(attachment(), network()...) {
		if _, there, err := c.Get(e.Set, e.Key); there || err != nil {
			t.Errorf("%s is left, %v", e, err)
		}
	}
}

// TestFromSchema3: attachments of schema 3 are served and removed as before, and may have what
// schema 4 adds.
func TestFromSchema3(t *testing.T) {
	c := open(t)
	nftTool(t, "-f", "testdata/schema3.nft")
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("an old table is no changed one: %q, %v", diffs, err)
	}
	c.Add(append(attachment(), network()...)...)
	commit(t, c)
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("%q, %v", diffs, err)
	}
	for _, e := range append(attachment(), network()...) {
		mustGet(t, c, e)
	}
	c.Remove(append(attachment(), network()...)...)
	commit(t, c)
	for _, e := range append(attachment(), network()...) {
		if _, there, err := c.Get(e.Set, e.Key); there || err != nil {
			t.Errorf("%s is left, %v", e, err)
		}
	}
}

// TestFromSchema4: the sets of schema 4 that are on demand now have their rules from the upgrade on.
func TestFromSchema4(t *testing.T) {
	c := open(t)
	nftTool(t, "-f", "testdata/schema4.nft")
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("an old table is no changed one: %q, %v", diffs, err)
	}
	e := masqueraded("10.1.0.6/16")
	c.Add(e...)
	commit(t, c)
	for _, chain := range []string{chainClosed, chainRanges, chainNeighbours, chainSameNet} {
		rules, err := c.ListRules(nftables.TableFamilyINet, TableName, chain)
		if want := map[string]int{chainClosed: 3, chainRanges: 2, chainNeighbours: 7, chainSameNet: 6}[chain]; err != nil || len(rules) != want {
			t.Errorf("chain %s has %d rules, not %d: %v", chain, len(rules), want, err)
		}
	}
	c.Remove(e...)
	commit(t, c)
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("%q, %v", diffs, err)
	}
	for _, e := range append(attachment(), network()...) {
		mustGet(t, c, e)
	}
	c.Remove(append(attachment(), network()...)...)
	commit(t, c)
	for _, e := range append(attachment(), network()...) {
		if _, there, err := c.Get(e.Set, e.Key); there || err != nil {
			t.Errorf("%s is left, %v", e, err)
		}
	}
}

// TestFromSchema5: an upgrade, by a transaction or by Rebuild, closes ports that are published on 127.0.0.1 for
// other machines.
func TestFromSchema5(t *testing.T) {
	for name, upgrade := range map[string]func(*Conn) error{
		"Commit":  func(c *Conn) error { c.Add(masqueraded("10.1.0.6/16")...); return c.Commit(t.Context()) },
		"Rebuild": func(c *Conn) error { return c.Rebuild(t.Context()) },
	} {
		c := open(t)
		nftTool(t, "-f", "testdata/schema5.nft")
		if old, err := c.Outdated(); err != nil || !strings.Contains(old, "schema 5") {
			t.Errorf("%q, %v", old, err)
		}
		if err := upgrade(c); err != nil {
			t.Fatal(err)
		}
		old, err := c.Outdated()
		if diffs, verr := c.Verify(); err != nil || verr != nil || strings.Contains(old, "inet") || len(diffs) > 0 {
			t.Errorf("%s: %q, %v, %q, %v", name, old, err, diffs, verr)
		}
		rules := nftTool(t, "list", "chain", "inet", TableName, chainPrerouting)
		if first, jump := strings.Index(rules, "127.0.0.0/8 return"), strings.Index(rules, "jump "+chainHostPorts); first < 0 || jump < first {
			t.Errorf("%s: a port on 127.0.0.1 is open for other machines:\n%s", name, rules)
		}
		for _, e := range append(attachment(), network()...) {
			mustGet(t, c, e)
		}
	}
}

// TestFromSchema6: after an upgrade, an internal bridge forwards within a network that spans hosts.
func TestFromSchema6(t *testing.T) {
	c := open(t)
	nftTool(t, "-f", "testdata/schema6.nft")
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
}
