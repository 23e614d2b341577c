// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/order"
)

// The command that removes a network crashes before it deletes the blocks. A host deletes its own block, and the
// blocks of hosts that are gone. A host that has been away for a short time deletes its block itself when it comes
// back.
func TestBlocksOfARemovedNetwork(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	h := newHost(t, s, 1)
	h.start()
	own := h.block("lan")
	free := slices.DeleteFunc(prefixes("10.200.3.0/24", "10.200.4.0/24", "10.200.5.0/24"), func(p netip.Prefix) bool { return p == own })
	gone, away := free[0], free[1]
	for id, c := range map[string]struct {
		block netip.Prefix
		away  time.Duration
	}{"gone": {gone, 48 * time.Hour}, "away": {away, time.Hour}} {
		_, err := s.Nodes().Create(t.Context(), store.Node{ID: id, Name: id, Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, Seen: time.Now().Add(-c.away)}, nil)
		must(t, err)
		_, err = s.Blocks().Create(t.Context(), store.Block{Network: "lan", Prefix: c.block, Node: id}, nil)
		must(t, err)
	}
	has := func(p netip.Prefix) bool {
		blocks, _, err := list(t.Context(), s.Blocks(), "")
		must(t, err)
		return slices.ContainsFunc(order.Values(blocks), func(x store.Block) bool { return x.Prefix == p })
	}
	if !has(own) || !has(gone) || !has(away) {
		t.Fatal("a block is missing while the network exists")
	}
	at, err := s.Networks().Get(t.Context(), "lan")
	must(t, err)
	must(t, s.Networks().Delete(t.Context(), "lan", at.Revision))
	until(t, "the blocks are deleted", func() bool { return !has(own) && !has(gone) })
	if !has(away) {
		t.Error("the block of a host that may come back is deleted")
	}
}

// A host has not heard yet of another host. It asks the store before it treats that host as gone.
func TestBlockOfAHostThatJustCame(t *testing.T) {
	s := openStore(t)
	a := &Agent{self: "me", wall: time.Now, opts: Options{Store: s, Reclaim: 24 * time.Hour, Log: t.Logf}}
	node := store.Node{ID: "other", Name: "other", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, Seen: time.Now().Add(-48 * time.Hour), LastingIn: historyOf(t, s)}
	_, err := s.Nodes().Create(t.Context(), node, nil)
	must(t, err)
	b := store.Block{Network: "lan", Prefix: prefix("10.200.3.0/24"), Node: node.ID}
	_, err = s.Blocks().Create(t.Context(), b, nil)
	must(t, err)
	there := store.Entry{Network: presence, ID: "host", Node: node.ID}
	_, err = s.Entries().Create(t.Context(), there, nil)
	must(t, err)
	late := &world{Nodes: []store.Node{node}, Blocks: []store.Block{b}}
	for _, stays := range []bool{true, false} {
		must(t, a.leave(t.Context(), late))
		if _, err := s.Blocks().Get(t.Context(), b.Key()); (err == nil) != stays {
			t.Errorf("the block is there: %v; it should be: %v", err == nil, stays)
		}
		must(t, s.Entries().Delete(t.Context(), there.Key(), ""))
	}
}
