// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const otherOwner = "234567abcdefghi"

func port(n uint16, to, owner string) Element {
	return Port(Published{Protocol: 6, Port: n, To: netip.MustParseAddrPort(to)}, nil, Comment(owner, "pods", "c", "eth0"))
}

func mustGet(t *testing.T, c *Conn, e Element) Element {
	t.Helper()
	got, ok, err := c.Get(e.Set, e.Key)
	if err != nil || !ok {
		t.Fatalf("get %s: found %v, %v", e, ok, err)
	}
	return got
}

func mustMiss(t *testing.T, c *Conn, e Element) {
	t.Helper()
	if got, ok, err := c.Get(e.Set, e.Key); err != nil || ok {
		t.Fatalf("get %s: got %s, %v", e, got, err)
	}
}

// Neither a query nor a removal creates anything.
func TestRemoveWithoutTable(t *testing.T) {
	c := open(t)
	c.Remove(attachment()...)
	c.Remove(network()...)
	commit(t, c)
	mustMiss(t, c, attachment()[0])
	if tables, err := library(t).ListTables(); err != nil || len(tables) > 0 {
		t.Errorf("tables %v, %v", tables, err)
	}
}

func TestAdd(t *testing.T) {
	c := open(t)
	mine := port(80, "10.1.0.5:80", testOwner)
	c.Add(mine)
	commit(t, c)
	if got := mustGet(t, c, mine); !got.same(mine) {
		t.Errorf("got %s, want %s", got, mine)
	}
	t.Run("again", func(t *testing.T) {
		c.Add(mine)
		commit(t, c)
	})
	t.Run("own, other data", func(t *testing.T) {
		moved := port(80, "10.1.0.9:80", testOwner)
		c.Add(moved)
		commit(t, c)
		if got := mustGet(t, c, moved); !got.same(moved) {
			t.Errorf("got %s, want %s", got, moved)
		}
		c.Add(mine)
		commit(t, c)
	})
	t.Run("another's port", func(t *testing.T) {
		c.Add(port(81, "10.1.0.6:80", otherOwner), port(80, "10.1.0.6:80", otherOwner))
		err := c.Commit(context.Background())
		var taken *ConflictError
		if !errors.As(err, &taken) || !taken.Have.same(mine) || !strings.Contains(err.Error(), testOwner) {
			t.Errorf("got %v", err)
		}
		if c.Pending() {
			t.Error("queue is not empty after Commit")
		}
		mustMiss(t, c, port(81, "10.1.0.6:80", otherOwner))
	})
	t.Run("taken over", func(t *testing.T) {
		theirs := port(80, "10.1.0.6:80", otherOwner)
		c.AddOrDecide(func(*ConflictError) error { return nil }, theirs)
		commit(t, c)
		c.Remove(mine) // a late DEL of the former owner
		commit(t, c)
		if got := mustGet(t, c, theirs); !got.same(theirs) {
			t.Errorf("got %s, want %s", got, theirs)
		}
	})
	t.Run("reused address", func(t *testing.T) {
		a := netip.MustParseAddr("10.1.0.5")
		c.Add(MasqAll(a, Comment(testOwner, "pods", "old", "eth0")))
		commit(t, c)
		now := MasqAll(a, Comment(otherOwner, "pods", "new", "eth0"))
		c.Add(now)
		commit(t, c)
		if got := mustGet(t, c, now); got.Comment != now.Comment {
			t.Errorf("GC of the dead would take %s along", got)
		}
	})
}

// TestSameFactOfTwoNetworks removes and adds an element in one transaction, and the element stays.
// Two networks on one bridge have elements that differ only in the comment, and Commit does not
// replace an element for that.
func TestSameFactOfTwoNetworks(t *testing.T) {
	c := open(t)
	c.Add(Isolate("cni0", "blue"), SameBridge("cni0", "blue"), GuardLoopback("cni0", "blue"))
	commit(t, c)
	c.Add(Isolate("cni0", "green"), SameBridge("cni0", "green"), GuardLoopback("cni0", "green"))
	if p, err := c.makePlan(); err != nil || !p.empty() {
		t.Errorf("the second network changes %d and %d elements, %v", len(p.add), len(p.delete), err)
	}
	commit(t, c)
	if got := mustGet(t, c, Isolate("cni0", "green")); got.Comment != "blue" {
		t.Errorf("%s was replaced", got)
	}
}

func TestAddWhileLeaving(t *testing.T) {
	c, d := open(t), Open("")
	defer d.Close() //nolint:errcheck // a test's socket
	e := port(80, "10.1.0.5:80", testOwner)
	for range 20 {
		c.Add(e)
		commit(t, c)
		c.Remove(e)
		if err := c.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		d.Add(e)
		if err := d.Commit(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := c.Commit(context.Background()); err != nil {
			t.Fatal(err)
		}
		if works, _ := c.ExpiryWorks(); works {
			time.Sleep(10 * time.Millisecond)
			mustGet(t, d, e)
		}
	}
}

func TestRefused(t *testing.T) {
	c := open(t)
	for _, e := range []Element{
		{Set: "nowhere", Key: []byte{1}},
		{Set: SetPorts4, Key: []byte{1}},
		{Set: SetPorts4, Key: ProtoPort(6, 80)},
		{Set: SetSchema, Key: number(0), Data: number(9)},
		{Set: SetOwners + "_x", Key: IfName("x")},
	} {
		c.Add(e)
		if err := c.Commit(context.Background()); err == nil {
			t.Errorf("%s was taken", e)
		}
	}
}

// Many processes create the table at once; no rule exists twice.
func TestCreateRace(t *testing.T) {
	c := open(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			d := Open("")
			defer d.Close() //nolint:errcheck // a test's socket
			d.Add(port(uint16(1000+i), "10.1.0.5:80", testOwner))
			d.Add(network()...)
			if err := d.Commit(context.Background()); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if diffs, err := c.Verify(); err != nil || len(diffs) > 0 {
		t.Errorf("table differs: %v, %v", diffs, err)
	}
	if got, err := c.List(SetPorts4); err != nil || len(got) != 8 {
		t.Errorf("%d ports, %v", len(got), err)
	}
}

// Two processes ask for the same port at the same moment: one gets it.
func TestPortRace(t *testing.T) {
	c := open(t)
	c.Add(network()...)
	commit(t, c)
	for n := range uint16(20) {
		errs := make(chan error, 2)
		for i, owner := range []string{testOwner, otherOwner} {
			go func() {
				d := Open("")
				defer d.Close() //nolint:errcheck // a test's socket
				d.Add(port(1000+n, fmt.Sprintf("10.1.0.%d:80", i+5), owner))
				errs <- d.Commit(context.Background())
			}()
		}
		var taken *ConflictError
		if a, b := <-errs, <-errs; (a == nil) == (b == nil) || !errors.As(errors.Join(a, b), &taken) {
			t.Errorf("port %d: %v, %v", 1000+n, a, b)
		}
	}
}

// 20,000 elements fit one transaction (repair after a flush).
func TestBigCommit(t *testing.T) {
	c := open(t)
	n := 20000
	if testing.Short() {
		n = 5000
	}
	var all []Element
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})
		all = append(all, port(uint16(1+i), netip.AddrPortFrom(a, 80).String(), testOwner))
	}
	c.Add(all...)
	commit(t, c)
	if got, err := c.List(SetPorts4); err != nil || len(got) != n {
		t.Errorf("%d elements, %v", len(got), err)
	}
}

// A record carries elements through JSON.
func TestElementJSON(t *testing.T) {
	for _, e := range append(attachment(), network()...) {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var back Element
		if err := json.Unmarshal(b, &back); err != nil || !back.same(e) {
			t.Errorf("%s came back as %s, %v", b, back, err)
		}
	}
	var e Element
	if err := json.Unmarshal([]byte(`{"set":"x","key":"zz"}`), &e); err == nil {
		t.Error("bad digits were taken")
	}
}

func TestComment(t *testing.T) {
	long := Comment(testOwner, strings.Repeat("ä", 100), "c", "eth0")
	if len(long) > MaxComment || !strings.HasSuffix(long, "ä") {
		t.Errorf("cut to %d bytes: %q", len(long), long)
	}
	if got := Comment(testOwner, "a\"b\nc", "c", "e"); strings.ContainsAny(got, "\"\n") {
		t.Errorf("nft cannot read %q", got)
	}
	for comment, want := range map[string]bool{long: true, "pods": false, "": false, testOwner + "x y": false, testOwner: false} {
		if o, ok := OwnerOf(comment); ok != want || ok && o != testOwner {
			t.Errorf("owner of %q is %q, %v", comment, o, ok)
		}
	}
}

func TestString(t *testing.T) {
	c := Open("")
	c.Add(attachment()...)
	c.Add(network()...)
	c.Remove(Element{Set: "x", Key: []byte{1}})
	golden(t, "queue.golden", c.String())
}

// goldenOfNFT compares what nft prints with a file in testdata, which Debian 12's has printed. A newer one prints the same table
// otherwise, and must load its own listing (reload).
func goldenOfNFT(t *testing.T, name, got string) {
	t.Helper()
	if strings.HasPrefix(nftTool(t, "--version"), "nftables v1.0.6 ") {
		golden(t, name, got)
	}
}

// golden compares with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it):\n%s", path, got)
	}
}
