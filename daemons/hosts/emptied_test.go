// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// emptied is a store that loses all its data while agents run: sessions end, and watches find
// another history.
type emptied struct {
	mu       sync.Mutex
	now      store.Store
	lost     chan struct{} // closed with the data
	sessions []store.Session
}

func newEmptied(t *testing.T) *emptied {
	t.Helper()
	return &emptied{now: openStore(t), lost: make(chan struct{})}
}

func (e *emptied) lose(t *testing.T, to store.Store) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.sessions {
		must(t, l.End(t.Context()))
	}
	e.now, e.sessions = to, nil
	close(e.lost)
	e.lost = make(chan struct{})
}

func (e *emptied) at() (store.Store, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now, e.lost
}

func (e *emptied) Networks() store.Table[store.Network] {
	return tableOf[store.Network]{e, store.Store.Networks}
}
func (e *emptied) Nodes() store.Table[store.Node] {
	return tableOf[store.Node]{e, store.Store.Nodes}
}
func (e *emptied) Blocks() store.Table[store.Block] {
	return tableOf[store.Block]{e, store.Store.Blocks}
}
func (e *emptied) Entries() store.Table[store.Entry] {
	return tableOf[store.Entry]{e, store.Store.Entries}
}
func (e *emptied) Close() error { return nil }

func (e *emptied) Fork(ctx context.Context, at store.Revision) error {
	s, _ := e.at()
	return s.Fork(ctx, at)
}

func (e *emptied) Session(ctx context.Context, ttl time.Duration) (store.Session, error) {
	s, _ := e.at()
	l, err := s.Session(ctx, ttl)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sessions = append(e.sessions, l)
	return l, err
}

type tableOf[T store.Object] struct {
	e  *emptied
	of func(store.Store) store.Table[T]
}

func (t tableOf[T]) table() store.Table[T] { s, _ := t.e.at(); return t.of(s) }

func (t tableOf[T]) Get(ctx context.Context, key string) (store.Item[T], error) {
	return t.table().Get(ctx, key)
}

func (t tableOf[T]) List(ctx context.Context, prefix string) ([]store.Item[T], store.Revision, error) {
	return t.table().List(ctx, prefix)
}

func (t tableOf[T]) Create(ctx context.Context, o T, l store.Session) (store.Revision, error) {
	return t.table().Create(ctx, o, l)
}

func (t tableOf[T]) Update(ctx context.Context, o T, at store.Revision) (store.Revision, error) {
	return t.table().Update(ctx, o, at)
}

func (t tableOf[T]) Delete(ctx context.Context, key string, at store.Revision) error {
	return t.table().Delete(ctx, key, at)
}

func (t tableOf[T]) Watch(ctx context.Context, after store.Revision) iter.Seq2[store.Event[T], error] {
	return func(yield func(store.Event[T], error) bool) {
		s, lost := t.e.at()
		within, end := context.WithCancel(ctx)
		defer end()
		go func() {
			select {
			case <-lost:
			case <-within.Done():
			}
			end()
		}()
		for e, err := range t.of(s).Watch(within, after) {
			if !yield(e, err) || err != nil {
				return
			}
		}
		if ctx.Err() == nil {
			yield(store.Event[T]{}, store.ErrCompacted)
		}
	}
}

// An etcd loses its data. The agents remove nothing and write their records again at once. Then
// the network is created again. A new host and all others get routes to each other.
func TestEmptiedUnderAgents(t *testing.T) {
	s := newEmptied(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	a, b, fresh := newHost(t, s, 1), newHost(t, s, 2), newHost(t, s, 3)
	a.start()
	b.start()
	toA, toB := a.block("lan").String()+" host1", b.block("lan").String()+" host2"
	until(t, "routes", func() bool {
		return slices.Equal(a.fabric.routes(), []string{toB}) && slices.Equal(b.fabric.routes(), []string{toA})
	})
	conf := a.conf("lan")
	s.lose(t, openStore(t))
	until(t, "both log it", func() bool {
		return a.log.has("as if its data were lost") && b.log.has("as if its data were lost")
	})
	until(t, "hosts and blocks are in the store again", func() bool {
		nodes, _, err := list(t.Context(), s.Nodes(), "")
		blocks, _, err2 := list(t.Context(), s.Blocks(), "")
		return err == nil && err2 == nil && len(nodes) == 2 && len(blocks) == 2
	})
	if got := a.fabric.routes(); !slices.Equal(got, []string{toB}) || a.conf("lan") != conf {
		t.Errorf("routes of a are %v, configuration %s", got, a.conf("lan"))
	}
	must(t, Admin{s}.Create(t.Context(), lan()))
	fresh.start()
	toFresh := fresh.block("lan").String() + " host3"
	all := []string{toA, toB}
	slices.Sort(all)
	until(t, "routes from and to the new host", func() bool {
		return slices.Equal(fresh.fabric.routes(), all) && slices.Contains(a.fabric.routes(), toFresh) && slices.Contains(b.fabric.routes(), toFresh)
	})
	until(t, "no problem is left", func() bool { return a.log.has("data of the store: resolved") })
	if a.conf("lan") != conf || a.log.has("configuration removed") || b.log.has("configuration removed") {
		t.Errorf("configuration %s", a.conf("lan"))
	}
	must(t, Admin{s}.Remove(t.Context(), "lan", true))
	until(t, "the configuration of the removed network is gone", func() bool { return a.conf("lan") == "" && len(a.fabric.routes()) == 0 })
}

// Tables from two stores do not form a world.
func TestTornWorld(t *testing.T) {
	one, other := openStore(t), openStore(t)
	m := &mirror{}
	if _, err := m.read(t.Context(), half{one, other}); !errors.Is(err, errTorn) {
		t.Errorf("read of two stores: %v", err)
	}
	if _, err := m.read(t.Context(), half{one, one}); err != nil {
		t.Error(err)
	}
}

// half is a store that is replaced between the lists of two tables.
type half struct {
	store.Store
	then store.Store
}

func (h half) Blocks() store.Table[store.Block]  { return h.then.Blocks() }
func (h half) Entries() store.Table[store.Entry] { return h.then.Entries() }

// After a restart the agent still has the objects that the store has lost, and no others.
func TestMissingIsRemembered(t *testing.T) {
	s := newEmptied(t)
	other := lan()
	other.Name, other.Subnets = "other", prefixes("10.201.0.0/16")
	must(t, Admin{s}.Create(t.Context(), lan()))
	must(t, Admin{s}.Create(t.Context(), other))
	a := newHost(t, s, 1)
	a.start()
	a.block("lan")
	a.block("other")
	s.lose(t, openStore(t))
	must(t, Admin{s}.Create(t.Context(), lan()))
	until(t, "it is saved", func() bool {
		text, _ := os.ReadFile(a.dir + "/state/hosts/world.json")
		return strings.Contains(string(text), `"missing":{"networks":[{"name":"other"`)
	})
	a.stop()
	must(t, Admin{s}.Remove(t.Context(), "lan", true)) // while no agent runs
	a.start()
	until(t, "the configuration of lan is gone", func() bool { return a.conf("lan") == "" })
	if a.conf("other") == "" {
		t.Error("the configuration of the lost network is gone")
	}
	must(t, Admin{s}.Create(t.Context(), other))
	must(t, Admin{s}.Remove(t.Context(), "other", true))
	until(t, "the configuration is gone after the event", func() bool { return a.conf("other") == "" })
}
