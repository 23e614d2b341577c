// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"
	"time"

	"github.com/google/nftables"
)

// Another program gave an element a timeout of its own. The timeout is no removal of ours, so
// Commit does not wait for it.
func TestForeignTimeout(t *testing.T) {
	mine := port(80, "10.1.0.5:80", testOwner)
	nobodys := port(80, "10.1.0.9:80", "")
	nobodys.Comment = ""
	for name, have := range map[string]Element{"nobody's": nobodys, "ours": mine, "another's": port(80, "10.1.0.9:80", otherOwner)} {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			c.Add(port(81, "10.1.0.5:81", testOwner)) // makes the table
			commit(t, c)
			timed(t, c, have)
			if list, err := c.List(SetPorts4); err != nil || len(list) != 2 {
				t.Errorf("listed %v, %v", list, err)
			}
			c.Remove(mine)
			commit(t, c)
			if _, there, err := c.Get(mine.Set, mine.Key); err != nil || there != (name != "ours") {
				t.Errorf("after the removal of ours: there %v, %v", there, err)
			}
			if name == "ours" {
				timed(t, c, have)
			}
			c.AddOrDecide(func(*ConflictError) error { return nil }, mine)
			commit(t, c)
			if got := mustGet(t, c, mine); !got.same(mine) || got.timed {
				t.Errorf("got %s, with a timeout: %v", got, got.timed)
			}
		})
	}
}

// timed adds an element that has a timeout.
func timed(t *testing.T, c *Conn, e Element) {
	t.Helper()
	msgs, err := encode(func(enc *nftables.Conn) error { return bySet([]Element{e}, time.Hour, enc.SetAddElements) })
	if err == nil {
		err = c.send(msgs)
	}
	if err != nil {
		t.Fatal(err)
	}
}
