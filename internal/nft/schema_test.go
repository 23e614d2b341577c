// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// as runs fn as a program with another schema. TestTwoBuilds does it with two real ones.
func as(t *testing.T, schema string, fn func()) {
	t.Helper()
	mine := schemaNumber
	schemaNumber = schema
	defer func() { schemaNumber = mine }()
	fn()
}

// An upgrade keeps elements, the operator's chain and a network's chain; the older program refuses
// and changes nothing; the newer program continues to work.
func TestUpgrade(t *testing.T) {
	c := open(t)
	cond, err := NewConditions("pods", []string{"-s", "10.0.0.0/8"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Queue(cond.Ensure())
	c.Add(attachment()...)
	c.Add(network()...)
	commit(t, c)
	nftTool(t, "add", "rule", "inet", TableName, chainAdmin, "ip", "saddr", "192.0.2.1", "accept")
	before := nftTool(t, "list", "ruleset")
	e := port(9, "10.1.0.5:80", testOwner)
	as(t, "9", func() {
		c.Add(e)
		commit(t, c)
		c.Add(CheckMAC("veth1", []byte{2, 0, 0, 0, 0, 2}, "")...) // the other table
		commit(t, c)
	})
	after := nftTool(t, "list", "ruleset")
	if n := strings.Count(after, "elements = { 0 : 9 }"); n != 2 {
		t.Errorf("%d tables have schema 9:\n%s", n, after)
	}
	var newer *NewerSchemaError
	for what, try := range map[string]func(){
		"add":    func() { c.Add(e) },
		"remove": func() { c.Remove(e) },
		"macs":   func() { c.Remove(attachment()...) },
	} {
		try()
		err := c.Commit(context.Background())
		if !errors.As(err, &newer) || !strings.Contains(err.Error(), "schema 9") || !strings.Contains(err.Error(), "up to 8") {
			t.Errorf("%s by the older program: %v", what, err)
		}
	}
	if got := nftTool(t, "list", "ruleset"); got != after {
		t.Errorf("the older program changed the table:\n%s", got)
	}
	as(t, "9", func() {
		c.Remove(e)
		c.Remove(CheckMAC("veth1", []byte{2, 0, 0, 0, 0, 2}, "")...)
		commit(t, c)
	})
	if got := strings.ReplaceAll(nftTool(t, "list", "ruleset"), "{ 0 : 9 }", "{ 0 : 8 }"); sorted(got) != sorted(before) {
		t.Errorf("the upgrade changed more than the schema:\n%s\nbefore:\n%s", got, before)
	}
}

// sorted compares listings of hashes, whose elements come in any order.
func sorted(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// asNewer makes this program the newer one of TestTwoBuilds. Its value is linked if the linker has set
// the schema.
const asNewer = "PATCHBAY_NEWER"

// TestTwoBuilds lets a program with the next schema upgrade the table under us. It is this program
// again; in the longer draw, this test is linked a second time.
func TestTwoBuilds(t *testing.T) {
	if how := os.Getenv(asNewer); how != "" {
		if how != "linked" {
			schemaNumber = "9"
		}
		c := Open(t.TempDir())
		c.Add(port(9, "10.1.0.5:80", testOwner))
		commit(t, c)
		return
	}
	newer, how := "/proc/self/exe", "again"
	if draw.All(t) {
		newer, how = linkNewer(t), "linked"
	}
	c := open(t)
	c.Add(port(8, "10.1.0.5:80", testOwner))
	commit(t, c)
	run := exec.Command(newer, "-test.run=^TestTwoBuilds$")
	run.Env = append(os.Environ(), asNewer+"="+how)
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("newer build: %v\n%s", err, out)
	}
	c.Add(port(10, "10.1.0.5:80", testOwner))
	err := c.Commit(context.Background())
	var refused *NewerSchemaError
	if !errors.As(err, &refused) || refused.Have != 9 || refused.Supported != 8 {
		t.Errorf("older build after newer: %v", err)
	}
	mustGet(t, c, port(8, "10.1.0.5:80", testOwner))
	mustGet(t, c, port(9, "10.1.0.5:80", testOwner))
}

func linkNewer(t *testing.T) (program string) {
	t.Helper()
	nettest.Need(t, nettest.Program("go"))
	program = t.TempDir() + "/newer.test"
	link := exec.Command("go", "test", "-c", "-o", program, "-ldflags", "-X github.com/patchbay-net/patchbay/internal/nft.schemaNumber=9", ".")
	if out, err := link.CombinedOutput(); err != nil {
		t.Fatalf("build newer: %v\n%s", err, out)
	}
	return program
}

// A foreign table of our name is an error; we do not write into it.
func TestForeignTable(t *testing.T) {
	c := open(t)
	nftTool(t, "add", "table", "inet", TableName)
	c.Add(port(9, "10.1.0.5:80", testOwner))
	if err := c.Commit(context.Background()); err == nil || !strings.Contains(err.Error(), "no schema") {
		t.Errorf("got %v", err)
	}
}

func TestVerifyAndRebuild(t *testing.T) {
	c := open(t)
	check := func(want int) {
		t.Helper()
		if diffs, err := c.Verify(); err != nil || len(diffs) != want {
			t.Errorf("%d differences, want %d: %q, %v", len(diffs), want, diffs, err)
		}
	}
	check(0)
	c.Add(attachment()...)
	commit(t, c)
	check(0)
	nftTool(t, "add", "rule", "inet", TableName, chainAdmin, "accept")
	check(0)
	nftTool(t, "flush", "chain", "inet", TableName, chainPublished)
	nftTool(t, "insert", "rule", "inet", TableName, chainPostrouting, "accept")
	nftTool(t, "flush", "table", "bridge", TableName)
	check(3)
	if err := c.Rebuild(context.Background()); err != nil {
		t.Fatal(err)
	}
	check(0)
	mustGet(t, c, attachment()[1])
	// After nft flush ruleset everything is gone, and is restored from records.
	flush(t, c)
	c.Add(attachment()...)
	c.Add(network()...)
	commit(t, c)
	check(0)
	mustGet(t, c, attachment()[1])
}
