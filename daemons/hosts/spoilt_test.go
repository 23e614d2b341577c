// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
)

// An endpoint on this host's session cannot be read. The agent writes it again. It keeps no name
// of a removed container.
func TestSpoiltEndpoint(t *testing.T) {
	backing := chaos.NewStore()
	s, ctx := backing.Client(), t.Context()
	must(t, Admin{s}.Create(ctx, lan()))
	w := &world{Networks: []store.Network{lan()}}
	a := &Agent{self: "me", others: map[string]time.Time{}, wall: time.Now}
	a.opts.Store, a.opts.TTL, a.opts.Reclaim, a.opts.Log, a.problems.Log = s, time.Minute, time.Hour, t.Logf, t.Logf
	for _, id := range []string{"stays", "goes", "spoilt"} {
		a.containers = append(a.containers, container{Network: "lan", ID: id, Addrs: []netip.Addr{netip.MustParseAddr("10.200.3.2")}, Names: []string{id}})
	}
	must(t, a.ensureSession(ctx))
	must(t, a.publish(ctx, w))
	all := a.published
	if len(all) != 5 {
		t.Fatalf("published: %v", all)
	}
	for damaged := range all {
		for _, e := range a.containers {
			if all[damaged].Object.ID != "goes."+a.run && e.ID == "goes" { // the others, not the one that is removed
				backing.Put("endpoints", damaged, []byte(`{"schema":99}`))
			}
		}
	}
	a.containers = a.containers[:1:1]
	for range 6 { // each spoilt endpoint is reported
		a.checked = time.Time{}
		_ = a.publish(ctx, w)
	}
	must(t, a.publish(ctx, w))
	items, _, err := s.Entries().List(ctx, "")
	if must(t, err); len(items) != 3 {
		t.Errorf("the store has %v, want the host's own two endpoints and one container", items)
	}
}

// Force removes a network with all its blocks, even those that cannot be read. The blocks of
// other networks stay.
func TestRemoveSpoiltBlock(t *testing.T) {
	backing := chaos.NewStore()
	s, ctx := backing.Client(), t.Context()
	must(t, Admin{s}.Create(ctx, lan()))
	for _, key := range []string{"lan/10.200.3.0-24", "lan/10.200.4.0-24", "other/10.201.3.0-24"} {
		backing.Put("blocks", key, []byte(`{"schema":99}`))
	}
	must(t, Admin{s}.Remove(ctx, "lan", true))
	_, _, err := s.Blocks().List(ctx, "")
	if left := store.UnreadableKeys(err); len(left) != 1 || left[0] != "other/10.201.3.0-24" {
		t.Errorf("left: %v", left)
	}
}
