// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
)

// spoilt is a store in which one object in each of three tables cannot be read.
type spoilt struct {
	store.Store
	node, presence, block string
}

func (s spoilt) Nodes() store.Table[store.Node] {
	return damaged[store.Node]{s.Store.Nodes(), s.node}
}

func (s spoilt) Entries() store.Table[store.Entry] {
	return damaged[store.Entry]{s.Store.Entries(), s.presence}
}

func (s spoilt) Blocks() store.Table[store.Block] {
	return damaged[store.Block]{s.Store.Blocks(), s.block}
}

// gone returns a store with host a, which is not present, and a's block.
func gone(t *testing.T) (s store.Store, block store.Block) {
	t.Helper()
	s = openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	block = store.Block{Network: "lan", Prefix: prefix("10.200.3.0/24"), Node: "a"}
	_, err := s.Blocks().Create(t.Context(), block, nil)
	must(t, err)
	_, err = s.Nodes().Create(t.Context(), store.Node{ID: "a", Name: "host1", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, nil)
	must(t, err)
	return s, block
}

// Unreadable objects of other hosts do not stop Forget.
func TestForgetWithDamage(t *testing.T) {
	s, block := gone(t)
	with := spoilt{s, "b", presence + "/b/host.x", "lan/10.200.9.0-24"}
	got, err := Admin{with}.Forget(t.Context(), "host1")
	if len(got) != 1 || got[0] != block {
		t.Errorf("free are %v", got)
	}
	if !errors.Is(err, store.ErrUnreadable) || !strings.Contains(err.Error(), "forget host host1: the host is forgotten, but blocks") {
		t.Errorf("it says %v", err)
	}
	if _, err := s.Nodes().Get(t.Context(), "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the host: %v", err)
	}
	if _, err := (Admin{with}).Forget(t.Context(), "host2"); !errors.Is(err, store.ErrNotFound) || !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("a host that may be the one that cannot be read: %v", err)
	}
}

// A presence counts even if it cannot be read.
func TestForgetPresentUnread(t *testing.T) {
	s, block := gone(t)
	_, err := Admin{spoilt{s, "b", presence + "/a/host.x", "lan/x"}}.Forget(t.Context(), "host1")
	if err == nil || !strings.Contains(err.Error(), "it is present") {
		t.Error(err)
	}
	if _, err := s.Blocks().Get(t.Context(), block.Key()); err != nil {
		t.Error(err)
	}
}

// back is a store in which a host updates its record when its block is deleted.
type back struct{ store.Store }

func (s back) Blocks() store.Table[store.Block] { return backBlocks{s.Store.Blocks(), s.Nodes()} }

type backBlocks struct {
	store.Table[store.Block]
	nodes store.Table[store.Node]
}

func (b backBlocks) Delete(ctx context.Context, key string, at store.Revision) error {
	now, err := b.nodes.Get(ctx, "a")
	if err != nil {
		return err
	}
	now.Object.Name = "back"
	_, err = b.nodes.Update(ctx, now.Object, now.Revision)
	return errors.Join(err, b.Table.Delete(ctx, key, at))
}

// A host comes back while it is forgotten, or while it leaves. It stays known.
func TestForgetBack(t *testing.T) {
	for about, give := range map[string]func(store.Store) error{
		"forget": func(s store.Store) error {
			_, err := Admin{spoilt{s, "b", presence + "/b/host.x", "lan/10.200.9.0-24"}}.Forget(t.Context(), "host1")
			return err
		},
		"leave": func(s store.Store) error {
			w, err := Admin{s}.read(t.Context())
			must(t, err)
			return (&Leaving{Store: s, Log: t.Logf}).giveBack(t.Context(), w)
		},
	} {
		s, _ := gone(t)
		if err := give(back{s}); !errors.Is(err, store.ErrConflict) || errors.Is(err, errKeptBlocks) {
			t.Errorf("%s: %v", about, err)
		}
		if n, err := s.Nodes().Get(t.Context(), "a"); err != nil || n.Object.Name != "back" {
			t.Errorf("%s: %v %v", about, n, err)
		}
	}
}

// The store has lost a host's blocks, and has one that cannot be read. The other hosts keep their routes to the host
// until the operator forgets it, and forget says that it did.
func TestForgetLostBlocks(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(&chaos.Schedule{Rand: rand.New(rand.NewPCG(1, 0))}, dir)
		c.calm = true
		c.work(4)
		must(t, c.Laws())
		h, dead := c.hosts[0], c.hosts[1]
		routes := func() (n int) {
			h.catchUp()
			h.apply()
			must(t, c.Laws())
			for _, via := range h.Routes {
				if via == dead.addr {
					n++
				}
			}
			return n
		}
		dead.stop()
		c.wipe(c.store.Empty)
		c.put("nodes", dead.agent.written)
		c.store.Put("blocks", "lan/10.200.0.128-26", []byte(`{"schema":99}`))
		if n := routes(); n != 2 {
			t.Errorf("%d routes after the loss, want one to each block", n)
		}
		c.forget()
		if n := routes(); n != 0 || !dead.forget {
			t.Errorf("%d routes after forget, which said that it forgot the host: %v", n, dead.forget)
		}
	})
}

// An endpoint that has changed since the last event is not removed.
func TestDropChanged(t *testing.T) {
	s := openStore(t)
	a := &Agent{self: "me", published: map[string]store.Item[store.Entry]{}}
	a.opts.Store = s
	was := store.Entry{Network: "lan", Node: "me", ID: "e.x", Names: []string{"web"}}
	now := was
	now.Names = []string{"db"}
	first, err := s.Entries().Create(t.Context(), was, nil)
	must(t, err)
	last, err := s.Entries().Update(t.Context(), now, first)
	must(t, err)
	a.published[was.Key()] = store.Item[store.Entry]{Object: was, Revision: first}
	must(t, errors.Join(a.drop(t.Context(), was.Key()), a.dropOther(t.Context(), was)))
	if at, err := s.Entries().Get(t.Context(), was.Key()); err != nil || at.Revision != last {
		t.Errorf("%v %v", at, err)
	}
	must(t, a.dropOther(t.Context(), now))
	if _, err := s.Entries().Get(t.Context(), was.Key()); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
}
