// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// A store that lost its data gets its networks again one by one. Meanwhile the other networks do
// not change, nor do routes to hosts that are slower.
func TestNetworksComeBackOneByOne(t *testing.T) {
	s := openStore(t)
	other := lan()
	other.Name, other.Subnets = "other", prefixes("10.201.0.0/16")
	must(t, Admin{s}.Create(t.Context(), lan()))
	must(t, Admin{s}.Create(t.Context(), other))
	a, b := newHost(t, s, 1), newHost(t, s, 2)
	a.start()
	b.start()
	want := []string{b.block("lan").String() + " host2", b.block("other").String() + " host2"}
	until(t, "the routes", func() bool { return slices.Equal(a.fabric.routes(), want) })
	until(t, "the configuration", func() bool { return a.conf("other") != "" })
	conf, block := a.conf("other"), a.block("other")
	b.stop()
	a.stop()
	a.store = openStore(t)
	a.start()
	until(t, "it is logged", func() bool { return a.log.has("as if its data were lost") })
	must(t, Admin{a.store}.Create(t.Context(), lan()))
	until(t, "the old block", func() bool {
		_, err := a.store.Blocks().Get(t.Context(), store.Block{Network: "lan", Prefix: a.block("lan")}.Key())
		return err == nil
	})
	until(t, "the routes, from memory", func() bool { return slices.Equal(a.fabric.routes(), want) })
	unchanged := func(agent string) {
		t.Helper()
		if got := a.fabric.routes(); !slices.Equal(got, want) || a.conf("other") != conf || a.log.has("configuration removed") {
			t.Errorf("%s: %v, %s", agent, got, a.conf("other"))
		}
	}
	unchanged("agent")
	a.stop()
	a.start()
	until(t, "it has read the store", func() bool { _, _, synced := a.agent.mirror.snapshot(); return synced })
	a.stop()
	a.agent.apply(t.Context(), true)
	unchanged("restarted agent")
	a.start()
	must(t, Admin{a.store}.Create(t.Context(), other))
	until(t, "the block of the other host", func() bool {
		at, err := a.store.Blocks().Get(t.Context(), store.Block{Network: "other", Prefix: block}.Key())
		return err == nil && at.Object.Node == a.agent.ID()
	})
	until(t, "it knows that the network is back", func() bool {
		w, _, synced := a.agent.mirror.snapshot()
		return synced && len(w.Missing.Networks) == 0
	})
	must(t, Admin{a.store}.Remove(t.Context(), "other", true))
	until(t, "the configuration of the removed network is gone", func() bool { return a.conf("other") == "" })
}

// A network is deleted with containers on it, and created again. The host gets the block to which
// its containers' addresses belong.
func TestDeletedByMistake(t *testing.T) {
	s := openStore(t)
	a := newHost(t, s, 1)
	a.start()
	a.stop()
	usual, _ := freeBlock(lan().Subnets[0], 24, nil, a.agent.ID()+" lan")
	must(t, Admin{s}.Create(t.Context(), lan()))
	foreign := store.Block{Network: "lan", Prefix: usual, Node: "x"}
	_, err := s.Blocks().Create(t.Context(), foreign, nil)
	must(t, err)
	a.start()
	block := a.block("lan")
	a.attach("e1", "lan", block.Addr().Next().Next().String(), "web")
	must(t, s.Blocks().Delete(t.Context(), foreign.Key(), ""))
	must(t, s.Networks().Delete(t.Context(), "lan", ""))
	until(t, "the network is gone", func() bool {
		blocks, _, err := list(t.Context(), s.Blocks(), "")
		return err == nil && len(blocks) == 0 && a.conf("lan") == ""
	})
	must(t, Admin{s}.Create(t.Context(), lan()))
	until(t, "the configuration is back", func() bool { return a.conf("lan") != "" })
	if got := a.block("lan"); got != block || got == usual {
		t.Errorf("%s, was %s", got, block)
	}
}

// slowTable is a table of two objects, one of which a newer Patchbay wrote.
type slowTable struct {
	store.Table[store.Block]
	most time.Duration
}

func (s *slowTable) List(ctx context.Context, _ string) ([]store.Item[store.Block], store.Revision, error) {
	if end, ok := ctx.Deadline(); ok {
		s.most = time.Until(end)
	}
	return []store.Item[store.Block]{{Object: store.Block{Network: "lan", Prefix: prefix("10.200.1.0/24"), Node: "a"}}}, "1", store.ErrUnreadable
}

func (s *slowTable) Get(_ context.Context, key string) (store.Item[store.Block], error) {
	if key == "lan/10.200.2.0-24" {
		return store.Item[store.Block]{}, store.ErrUnreadable
	}
	return store.Item[store.Block]{}, store.ErrNotFound
}

// An object that cannot be read keeps its value, even one from before this start. A deleted
// object goes. A large table gets enough time.
func TestUnreadable(t *testing.T) {
	m := &mirror{cache: world{Blocks: []store.Block{
		{Network: "lan", Prefix: prefix("10.200.2.0/24"), Node: "b"}, {Network: "lan", Prefix: prefix("10.200.3.0/24"), Node: "c"},
	}}}
	m.restore()
	table := &slowTable{}
	var blocks map[string]store.Block
	var at store.Revision
	if err := readTable(t.Context(), m, new(reading), table, &m.blocks, &blocks, &at); !errors.Is(err, store.ErrUnreadable) {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(blocks)); !slices.Equal(got, []string{"lan/10.200.1.0-24", "lan/10.200.2.0-24"}) {
		t.Errorf("%v", got)
	}
	if table.most < time.Minute {
		t.Errorf("it has %v", table.most)
	}
}

// A host updates the time in its record only for hosts that reclaim blocks. The update does not
// start the loops of 500 hosts.
func TestSeenWakesNoLoop(t *testing.T) {
	woken := 0
	m := &mirror{changed: func() { woken++ }}
	deliver := func(n store.Node, gone bool) int {
		change(m, &m.nodes, store.Event[store.Node]{Item: store.Item[store.Node]{Object: n}, Deleted: gone})
		return woken
	}
	n := store.Node{ID: "a", Name: "a", Seen: time.Unix(1, 0)}
	later, moved := n, n
	later.Seen, moved.Port = time.Unix(2, 0), 4790
	if got := []int{deliver(n, false), deliver(later, false), deliver(moved, false), deliver(moved, true)}; !slices.Equal(got, []int{1, 1, 2, 3}) {
		t.Errorf("%v", got)
	}
	for reclaim, want := range map[time.Duration]time.Duration{24 * time.Hour: time.Hour, time.Minute: time.Minute, 1000 * time.Hour: time.Hour, 12 * time.Hour: 30 * time.Minute} {
		if got := (&Agent{opts: Options{Reclaim: reclaim}}).seenEvery(); got != want {
			t.Errorf("%v: %v", reclaim, got)
		}
	}
}

// A record whose block is wider than the block size is ignored. It would take addresses from other
// hosts.
func TestWideBlock(t *testing.T) {
	p := &part{plan: plan{Network: lan()}}
	w := &world{Blocks: []store.Block{
		{Network: "lan", Prefix: prefix("10.200.128.0/17"), Node: "a"}, {Network: "lan", Prefix: prefix("10.200.130.0/24"), Node: "b"},
	}}
	if got := blocksOfPeers(w, p); len(got) != 1 || len(got["b"]) != 1 {
		t.Errorf("%v", got)
	}
}

// All containers of all hosts have the same name. Each container costs one append, and the large
// file is not written all the time.
func TestCrowd(t *testing.T) {
	w := &world{Networks: []store.Network{lan()}, Blocks: []store.Block{{Network: "lan", Prefix: lan().Subnets[0], Node: "b"}}}
	for n := range 50000 {
		addr := netip.AddrFrom4([4]byte{10, 200, byte(n / 250), byte(n % 250)})
		w.Endpoints = append(w.Endpoints, store.Entry{Network: "lan", Node: "b", ID: addr.String(), Addrs: []netip.Addr{addr}, Names: []string{"web"}})
	}
	began, v := time.Now(), &view{}
	for range 10 {
		v.build(w, "me", nil)
	}
	if addrs, _ := v.Addrs("lan", "web"); len(addrs) != 50000 {
		t.Errorf("%d addresses", len(addrs))
	}
	if took := time.Since(began); took > 10*time.Second { // 0.1 s is usual; if the time grew with the square of the containers, it would be half a minute
		t.Errorf("it took %v", took)
	}
	if small, large := (&saved{}).pause(), (&saved{all: make([]byte, 10<<20)}).pause(); small != saveEvery || large < time.Minute {
		t.Errorf("%v, %v", small, large)
	}
}

// The two loops do not start each other without a reason.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t)
		must(t, Admin{s}.Create(t.Context(), lan()))
		a := newHost(t, s, 1)
		a.start()
		a.block("lan")
		a.stop()
		g := a.agent
		g.mirror.changed = func() {}
		select {
		case <-g.local:
		default:
		}
		before := g.problems.Changes() + g.mirror.changes()
		g.mirror.remember("lan", []netip.Prefix{a.block("lan")})
		g.problems.Set("x", nil)
		if g.problems.Changes()+g.mirror.changes() != before {
			t.Error("nothing changed, and a change was counted")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan bool)
		go func() { g.tendStore(ctx); close(ended) }()
		select {
		case <-g.local:
			t.Error("the other loop was woken")
		case <-time.After(2 * time.Second):
		}
		cancel()
		<-ended
		g.mirror.remember("lan", prefixes("10.201.0.0/24")) // outside the network: the host's own block may be any within it
		g.problems.Set("x", errors.New("y"))
		if got := g.problems.Changes() + g.mirror.changes(); got != before+2 {
			t.Errorf("%d, was %d", got, before)
		}
	})
}

// An address appears a moment after the agent's start. The agent does not take a minute to find
// it. Meanwhile the loop of the store does not report the problem as resolved.
func TestLateAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t)
		must(t, Admin{s}.Create(t.Context(), lan()))
		a := newHost(t, s, 1)
		a.late = 4
		a.start()
		until(t, "the network", func() bool { return a.conf("lan") != "" })
		if !a.log.has("uplink's address: not yet") || a.log.has("uplink: resolved") {
			t.Error("the log")
		}
	})
}
