// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"
)

// meanwhile runs once between the look and the transaction.
type meanwhile func()

func (m *meanwhile) String() string { return "another transaction" }

func (m *meanwhile) Plan(*Conn) (func(*nftables.Conn) error, error) {
	if do := *m; do != nil {
		*m = nil
		do()
	}
	return nil, nil
}

func masqOf(owner string) Element {
	return MasqAll(netip.MustParseAddr("10.1.0.5"), Comment(owner, "pods", "c", "eth0"))
}

// Another owner adds the element between the look and the transaction. Commit calls decide.
func TestClaimRace(t *testing.T) {
	c, d := open(t), Open("")
	defer d.Close() //nolint:errcheck // a test's socket
	mine, theirs := masqOf(testOwner), masqOf(otherOwner)
	c.Add(port(80, "10.1.0.5:80", testOwner)) // this commit makes the table
	commit(t, c)
	asked := 0
	c.AddOrDecide(func(taken *ConflictError) error { asked++; return nil }, mine)
	between := meanwhile(func() { d.Add(theirs); commit(t, d) })
	c.Queue(&between)
	commit(t, c)
	if got := mustGet(t, c, mine); asked != 1 || !got.same(mine) {
		t.Errorf("asked %d times, got %s", asked, got)
	}
}

// Commit keeps the other owner's element and does the rest of the transaction.
func TestClaimKeep(t *testing.T) {
	c := open(t)
	theirs, more := masqOf(otherOwner), port(80, "10.1.0.5:80", testOwner)
	c.Add(theirs)
	commit(t, c)
	c.AddOrDecide(func(*ConflictError) error { return ErrKeep }, masqOf(testOwner), more)
	commit(t, c)
	mustGet(t, c, more)
	if got := mustGet(t, c, theirs); !got.same(theirs) {
		t.Errorf("got %s", got)
	}
}

// An heir replaces only an element that is removed, not a missing element or another owner's.
func TestWithdraw(t *testing.T) {
	c := open(t)
	mine, theirs := masqOf(testOwner), masqOf(otherOwner)
	heir := func(gone Element) (Element, bool) { return theirs, true }
	c.Withdraw(heir, mine)
	commit(t, c)
	mustMiss(t, c, mine)
	c.Add(mine)
	commit(t, c)
	for range 2 {
		c.Withdraw(heir, mine)
		commit(t, c)
		if got := mustGet(t, c, theirs); !got.same(theirs) {
			t.Errorf("got %s", got)
		}
	}
	c.Withdraw(func(Element) (Element, bool) { return Element{}, false }, theirs)
	commit(t, c)
	mustMiss(t, c, theirs)
}
