// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"os"
	"testing"
)

// The first removal finds out and tells the next process.
func TestExpiryIsLearnt(t *testing.T) {
	c := open(t)
	if _, known := c.ExpiryWorks(); known {
		t.Fatal("known before it was tried")
	}
	c.Add(attachment()...)
	commit(t, c)
	c.Remove(attachment()...)
	commit(t, c)
	for _, e := range attachment() {
		mustMiss(t, c, e)
	}
	works, known := c.ExpiryWorks()
	if !known {
		t.Fatal("not known after a removal")
	}
	next := Open(c.runDir)
	if w, known := next.ExpiryWorks(); !known || w != works {
		t.Errorf("next process reads %v, %v", w, known)
	}
	if err := os.WriteFile(c.expiryFile(), []byte("5.10.0 works\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"5.10.0 works\n", "", "x", kernelRelease() + " perhaps\n"} {
		if err := os.WriteFile(c.expiryFile(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, known := Open(c.runDir).ExpiryWorks(); known {
			t.Errorf("%q was believed", content)
		}
	}
}

// Removal is seen when Commit returns, in either way.
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
	for _, how := range []expiry{expiryUnknown, expiryWorks} {
		c := open(t)
		c.expiry = how
		e := port(80, "10.1.0.5:80", testOwner)
		c.Add(e)
		commit(t, c)
		c.leaving = []Element{e}
		if err := c.Commit(context.Background()); err != nil {
			t.Fatal(err)
		}
		mustMiss(t, c, e)
		want := how
		if how == expiryUnknown {
			want = expiryIgnored
		}
		if c.expiry != want {
			t.Errorf("after %v it thinks %v", how, c.expiry)
		}
	}
}

// A run directory that cannot be written costs time, nothing else.
func TestExpiryWithoutRunDir(t *testing.T) {
	c := open(t)
	c.runDir = "/proc/nowhere"
	c.Add(attachment()...)
	commit(t, c)
	c.Remove(attachment()...)
	commit(t, c)
	mustMiss(t, c, attachment()[1])
}
