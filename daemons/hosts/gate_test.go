// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/clock"
)

var errAway = errors.New("the store is away")

// gate is a store that a test can make unreachable. It keeps the sessions that were begun.
type gate struct {
	store.Store
	mu       sync.Mutex
	away     bool
	sessions []store.Session
	ended    atomic.Int32 // contexts of sessions that have ended
}

func (g *gate) set(away bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.away = away
}

func (g *gate) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.away {
		return errAway
	}
	return nil
}

func (g *gate) Networks() store.Table[store.Network] {
	return door[store.Network]{g.Store.Networks(), g}
}
func (g *gate) Nodes() store.Table[store.Node]   { return door[store.Node]{g.Store.Nodes(), g} }
func (g *gate) Blocks() store.Table[store.Block] { return door[store.Block]{g.Store.Blocks(), g} }
func (g *gate) Entries() store.Table[store.Entry] {
	return door[store.Entry]{g.Store.Entries(), g}
}

func (g *gate) Session(ctx context.Context, ttl time.Duration) (store.Session, error) {
	if err := g.err(); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { g.ended.Add(1) })
	l, err := g.Store.Session(ctx, ttl)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sessions = append(g.sessions, l)
	return l, err
}

// session returns the shorter one of the two sessions that were begun last.
func (g *gate) session() store.Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sessions[len(g.sessions)-2]
}

// door is a table behind a gate.
type door[T store.Object] struct {
	store.Table[T]
	g *gate
}

func (d door[T]) Get(ctx context.Context, key string) (store.Item[T], error) {
	if err := d.g.err(); err != nil {
		return store.Item[T]{}, err
	}
	return d.Table.Get(ctx, key)
}

func (d door[T]) List(ctx context.Context, prefix string) ([]store.Item[T], store.Revision, error) {
	if err := d.g.err(); err != nil {
		return nil, "", err
	}
	return d.Table.List(ctx, prefix)
}

func (d door[T]) Create(ctx context.Context, o T, l store.Session) (store.Revision, error) {
	if err := d.g.err(); err != nil {
		return "", err
	}
	return d.Table.Create(ctx, o, l)
}

func (d door[T]) Update(ctx context.Context, o T, at store.Revision) (store.Revision, error) {
	if err := d.g.err(); err != nil {
		return "", err
	}
	return d.Table.Update(ctx, o, at)
}

func (d door[T]) Watch(ctx context.Context, after store.Revision) iter.Seq2[store.Event[T], error] {
	return func(yield func(store.Event[T], error) bool) {
		for e, err := range d.Table.Watch(ctx, after) {
			for d.g.err() != nil && ctx.Err() == nil { // the event arrives when the store is back
				clock.Sleep(ctx, 10*time.Millisecond)
			}
			if ctx.Err() != nil || !yield(e, err) {
				return
			}
		}
	}
}
