// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// damages are commands of nft that stop one of our tables from working while its elements
// remain, and what Verify reports about each.
var damages = []struct{ name, command, says string }{
	{"dormant", "add table inet patchbay { flags dormant; }", "dormant"},
	{"dormant, and a chain less", "add table inet patchbay { flags dormant; }; delete chain inet patchbay postrouting", "chain postrouting of table inet patchbay is missing"},
	{"policy", "add chain inet patchbay forward { policy drop; }", "chain forward of table inet patchbay drops"},
	{"rule", "add rule inet patchbay forward counter drop", "chain forward of table inet patchbay has 3 rules"},
	{"on demand", "flush chain inet patchbay closed", "the rule of set isolation is missing from chain closed"},
	{"flushed", "flush table inet patchbay", "rules"},
	{"base chain", "delete chain inet patchbay prerouting", "chain prerouting of table inet patchbay is missing"},
	{"another hook", "flush chain inet patchbay raw; delete chain inet patchbay raw; add chain inet patchbay raw { type filter hook output priority 0; }", "chain raw of table inet patchbay"},
	{"no hook", "flush chain inet patchbay raw; delete chain inet patchbay raw; add chain inet patchbay raw", "chain raw of table inet patchbay"},
	{"a base chain more", "add chain inet patchbay mine { type filter hook forward priority -5; policy drop; }", "chain mine of table inet patchbay is not ours"},
	{"schema", "flush map inet patchbay schema", "has lost its schema number"},
	{"schema's map", "delete map inet patchbay schema", "has lost its schema number"},
	{"conditional", "insert rule inet patchbay conditional drop", "chain conditional of table inet patchbay has rules that are not ours"},
	{"other family", "add table bridge patchbay { flags dormant; }; flush map bridge patchbay schema", "table bridge patchbay is dormant"},
}

func TestDamageIsFoundAndMended(t *testing.T) {
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			c := open(t)
			cond, err := NewConditions("pods", []string{"-s", "10.0.0.0/8"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			c.Queue(cond.Ensure())
			c.Add(attachment()...)
			c.Add(network()...)
			c.Add(Internal("cni2", "pods")...)
			commit(t, c)
			before := nftTool(t, "list", "ruleset")
			nftTool(t, d.command)
			diffs, err := c.Verify()
			if err != nil || !strings.Contains(strings.Join(diffs, "\n"), d.says) {
				t.Fatalf("found %q, %v", diffs, err)
			}
			for range 2 { // the second repair changes nothing
				if err := c.Rebuild(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
				t.Errorf("rebuilt: %q, %v", diffs, err)
			}
			c.Queue(cond.Restore())
			commit(t, c)
			if after := nftTool(t, "list", "ruleset"); sorted(after) != sorted(before) {
				t.Errorf("rebuilt:\n%s\nbefore:\n%s", after, before)
			}
			c.Add(port(9, "10.1.0.5:80", testOwner))
			commit(t, c)
		})
	}
}

// TestStatusOfDamage: STATUS fails if an ADD would fail or would have no effect.
func TestStatusOfDamage(t *testing.T) {
	c := open(t)
	c.Add(attachment()...)
	commit(t, c)
	if err := c.Status(); err != nil {
		t.Error(err)
	}
	nftTool(t, "add table inet patchbay { flags dormant; }")
	if err := c.Status(); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "dormant") {
		t.Error(err)
	}
	nftTool(t, "add table inet patchbay; flush map inet patchbay schema")
	if err := c.Status(); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "schema number") {
		t.Error(err)
	}
	c.Add(port(9, "10.1.0.5:80", testOwner))
	if err := c.Commit(context.Background()); err == nil || !strings.Contains(err.Error(), "run `patchbay repair`") {
		t.Error(err)
	}
}

// TestRebuildLeavesAnothersTable: Rebuild does not change a table that has our name but lacks our
// sets, because another program made it.
func TestRebuildLeavesAnothersTable(t *testing.T) {
	c := open(t)
	nftTool(t, "add table inet patchbay; add chain inet patchbay theirs { type filter hook forward priority 0; }")
	if diffs, err := c.Verify(); err != nil || len(diffs) != 1 || !strings.Contains(diffs[0], "not ours") {
		t.Errorf("%q, %v", diffs, err)
	}
	before := nftTool(t, "list", "ruleset")
	if err := c.Rebuild(context.Background()); err == nil || !strings.Contains(err.Error(), "nft delete table inet patchbay") {
		t.Error(err)
	}
	if after := nftTool(t, "list", "ruleset"); after != before {
		t.Error(after)
	}
}

// TestConditionsRestored: repair restores the chain of a network's conditions, and the jump
// to it.
func TestConditionsRestored(t *testing.T) {
	c := open(t)
	cond, err := NewConditions("pods", []string{"-s", "10.0.0.0/8"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	chain := cond.chainName()
	for _, command := range []string{
		"flush chain inet patchbay " + chain,
		"insert rule inet patchbay " + chain + " drop",
		"flush chain inet patchbay conditional",
		"flush ruleset",
	} {
		c.Queue(cond.Ensure())
		commit(t, c)
		before := nftTool(t, "list", "ruleset")
		if lost, err := cond.Lost(c); err != nil || len(lost) > 0 {
			t.Errorf("%q, %v", lost, err)
		}
		nftTool(t, command)
		if lost, err := cond.Lost(c); err != nil || len(lost) == 0 {
			t.Errorf("after %s: %q, %v", command, lost, err)
		}
		c.Queue(cond.Restore())
		commit(t, c)
		if after := nftTool(t, "list", "ruleset"); sorted(after) != sorted(before) {
			t.Errorf("after %s:\n%s\nbefore:\n%s", command, after, before)
		}
	}
}

// TestReloadedIsNotChanged: nft writes a prefix in another form than we do, with the same
// meaning.
func TestReloadedIsNotChanged(t *testing.T) {
	c := open(t)
	cond, err := NewConditions("pods", []string{"-s", "10.0.0.0/8", "-d", "192.0.2.0/26"}, []string{"-s", "fd00::/16"})
	if err != nil {
		t.Fatal(err)
	}
	c.Queue(cond.Ensure())
	c.Add(attachment()...)
	c.Add(network()...)
	commit(t, c)
	reload(t, c, nftTool(t, "list", "ruleset"))
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("%q, %v", diffs, err)
	}
	if lost, err := cond.Lost(c); err != nil || len(lost) > 0 {
		t.Errorf("%q, %v", lost, err)
	}
}
