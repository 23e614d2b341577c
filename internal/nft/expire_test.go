// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// The first removal that is able to probe the kernel does so, and the next process reads the result.
func TestExpiryIsLearnt(t *testing.T) {
	c := open(t)
	if _, known := c.ExpiryWorks(); known {
		t.Fatal("known before it was tried")
	}
	works, known := false, false
	for range 20 { // a process that is delayed for 10 ms finds no element, and leaves the probe to the next removal
		c.Add(attachment()...)
		commit(t, c)
		c.Remove(attachment()...)
		commit(t, c)
		for _, e := range attachment() {
			mustMiss(t, c, e)
		}
		if works, known = c.ExpiryWorks(); known {
			break
		}
	}
	if !known {
		t.Fatal("not known after 20 removals")
	}
	next := Open(c.runDir)
	if w, known := next.ExpiryWorks(); !known || w != works {
		t.Errorf("next process reads %v, %v", w, known)
	}
	if err := os.WriteFile(c.expiryFile(), []byte("5.10.0 expires\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"5.10.0 expires\n", kernelRelease() + " works\n", "", "x", kernelRelease() + " perhaps\n"} {
		if err := os.WriteFile(c.expiryFile(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, known := Open(c.runDir).ExpiryWorks(); known {
			t.Errorf("%q was believed", content)
		}
	}
}

// A removal is visible when Commit returns, by expiry and by deletion.
func TestRemoveIsSeen(t *testing.T) {
	for _, how := range []expiry{expiryUnknown, expiryIgnored} {
		c := open(t)
		c.expiry = how
		for range 5 {
			c.Add(attachment()...)
			commit(t, c)
			c.Remove(attachment()...)
			commit(t, c)
			for _, e := range attachment() {
				mustMiss(t, c, e)
				if left, err := c.List(e.Set); err != nil || len(left) > 0 {
					t.Errorf("%s still has %v, %v", e.Set, left, err)
				}
			}
		}
	}
}

// An element that does not expire is deleted, as on a kernel that ignores the
// timeout: here the timeout is never sent.
func TestDeleteWhatDoesNotExpire(t *testing.T) {
	c := open(t)
	c.expiry = expiryUnknown
	e := port(80, "10.1.0.5:80", testOwner)
	c.Add(e)
	commit(t, c)
	c.leaving = []Element{e}
	if err := c.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	mustMiss(t, c, e)
	if c.expiry != expiryIgnored {
		t.Errorf("it thinks %v", c.expiry)
	}
}

// A missing element does not prove that it expired: an old kernel ignores the timeout (here it is not sent), and
// another program flushes the ruleset.
func TestFlushIsNoExpiry(t *testing.T) {
	c := open(t)
	c.expiry = expiryUnknown
	e := port(80, "10.1.0.5:80", testOwner)
	c.Add(e)
	commit(t, c)
	c.probe([]Element{e})
	c.leaving = []Element{e}
	other, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	other.FlushRuleset()
	if err := errors.Join(other.Flush(), c.settle()); err != nil {
		t.Fatal(err)
	}
	if c.expiry != expiryUnknown {
		t.Errorf("it thinks %v", c.expiry)
	}
}

// Elements that did not expire are deleted even if another process deletes one of them first.
func TestDeleteOthersToo(t *testing.T) {
	c := open(t)
	c.expiry = expiryIgnored
	a, b := port(80, "10.1.0.5:80", testOwner), port(81, "10.1.0.5:81", testOwner)
	c.Add(b)
	commit(t, c)
	if err := c.deleteUnexpired([]Element{a, b}); err != nil {
		t.Fatal(err)
	}
	mustMiss(t, c, b)
}

// One process lets an element expire. Another adds it again as soon as it has expired, while the first still
// waits for that. The first must leave the new element alone.
func TestAddedAgainWhileItLeaves(t *testing.T) {
	for name, e := range map[string]Element{"attachment": port(80, "10.1.0.5:80", testOwner), "network": AnyPort(netip.MustParsePrefix("10.1.0.0/24"), "pods")} {
		t.Run(name, func(t *testing.T) {
			last := open(t)
			last.Add(e)
			commit(t, last)
			last.Remove(e)
			commit(t, last) // it knows by now whether elements expire
			last.Add(e)
			commit(t, last)

			last.Remove(e)
			if err := last.Start(context.Background()); err != nil {
				t.Fatal(err)
			}
			next := Open(last.runDir)
			t.Cleanup(func() { next.Close() }) //nolint:errcheck // the namespace ends
			next.Add(e)
			commit(t, next)
			commit(t, last)
			if _, ok, err := next.Get(e.Set, e.Key); err != nil || !ok {
				t.Errorf("%s: found %v, %v", e, ok, err)
			}
		})
	}
}

// If the run directory cannot be written, removals only take longer.
func TestExpiryWithoutRunDir(t *testing.T) {
	c := open(t)
	c.runDir = "/proc/nowhere"
	c.Add(attachment()...)
	commit(t, c)
	c.Remove(attachment()...)
	commit(t, c)
	mustMiss(t, c, attachment()[1])
}

// AwaitTick makes a removal visible for which no caller waited, however late within a tick it was committed.
func TestLeave(t *testing.T) {
	nettest.Need(t, canExpire(t))
	c := open(t)
	c.Add(attachment()...)
	commit(t, c)
	c.Remove(attachment()...)
	if err := c.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	if c.Leave() {
		t.Error("it trusts a kernel that it has not tried")
	}
	commit(t, c)
	for range draw.Number(t, "PATCHBAY_LEAVE_ROUNDS", 30, 100) {
		c.Add(attachment()...)
		commit(t, c)
		c.Remove(attachment()...)
		if err := c.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		if !c.Leave() || len(c.leaving) > 0 {
			t.Fatal("it would wait")
		}
		AwaitTick(Ticks())
		if left, err := c.present(attachment()); err != nil || len(left) > 0 {
			t.Fatalf("left: %v, %v", left, err)
		}
	}
}

// The first removal has a timeout longer than a tick, so Commit waits longer, however many elements it removes.
func TestFirstRemovalOfMany(t *testing.T) {
	nettest.Need(t, canExpire(t))
	for range 5 {
		c := open(t)
		var many []Element
		for i := range 4 * fewElements {
			many = append(many, Port(Published{Protocol: 6, Port: uint16(1000 + i), To: netip.MustParseAddrPort("10.1.0.2:80")}, nil, Comment("0123456789abcde", "net", "id", "eth0")))
		}
		c.Add(many...)
		commit(t, c)
		c.Remove(many...)
		commit(t, c)
		if left, err := c.present(many); err != nil || len(left) > 0 {
			t.Fatalf("%d are left: %v", len(left), err)
		}
		if c.probing {
			t.Error("it still probes")
		}
	}
}
