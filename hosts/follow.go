// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/patchbay-net/patchbay/store"
)

// follow keeps the mirror like the store until ctx ends. Tell hears how it goes
// with each table.
func (m *mirror) follow(ctx context.Context, s store.Store, tell func(about string, err error)) {
	m.tables = tables{map[string]store.Network{}, map[string]store.Node{}, map[string]store.Block{}, map[string]store.Endpoint{}}
	go followTable(ctx, follower[store.Network]{m, s.Networks(), m.networks, &m.heard[0], tell, "networks"})
	go followTable(ctx, follower[store.Node]{m, s.Nodes(), m.nodes, &m.heard[1], tell, "nodes"})
	go followTable(ctx, follower[store.Block]{m, s.Blocks(), m.blocks, &m.heard[2], tell, "blocks"})
	go followTable(ctx, follower[store.Endpoint]{m, s.Endpoints(), m.endpoints, &m.heard[3], tell, "endpoints"})
}

// againAfter is how long a store that failed is left alone.
const againAfter = time.Second

// keep calls fn again and again until ctx ends.
func keep(ctx context.Context, failed func(error), fn func() error) {
	for ctx.Err() == nil {
		if err := fn(); err != nil && ctx.Err() == nil {
			failed(err)
		}
		wait(ctx, againAfter)
	}
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// follower is one table of a mirror.
type follower[T store.Object] struct {
	m     *mirror
	table store.Table[T]
	into  map[string]T
	heard *bool
	tell  func(about string, err error)
	name  string
}

func followTable[T store.Object](ctx context.Context, f follower[T]) {
	keep(ctx, func(err error) { f.tell("follow "+f.name, err) }, func() error { return f.follow(ctx) })
}

// follow lists the table and then hears of its changes, until the store says
// that we have to list again. Objects that cannot be read, as of a later version,
// are passed over, but not networks: one that is missing would be taken down.
func (f *follower[T]) follow(ctx context.Context) error {
	items, at, err := list(ctx, f.table, "")
	if err != nil && (f.name == "networks" || !errors.Is(err, store.ErrUnreadable)) {
		return err
	}
	f.tell("follow "+f.name, err)
	f.replace(items)
	for e, err := range f.table.Watch(ctx, at) {
		if err != nil {
			return err
		}
		f.change(e)
	}
	return nil
}

func (f *follower[T]) replace(items map[string]T) {
	f.m.mu.Lock()
	clear(f.into)
	maps.Copy(f.into, items)
	*f.heard = true
	f.m.mu.Unlock()
	f.m.changed()
}

func (f *follower[T]) change(e store.Event[T]) {
	f.m.mu.Lock()
	if e.Gone {
		delete(f.into, e.Object.Key())
	} else {
		f.into[e.Object.Key()] = e.Object
	}
	f.m.mu.Unlock()
	f.m.changed()
}

// callTime bounds one call of the store.
const callTime = 5 * time.Second

// list is a table's objects by key. With an error that is store.ErrUnreadable
// come those that can be read.
func list[T store.Object](ctx context.Context, t store.Table[T], prefix string) (map[string]T, store.Revision, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	items, at, err := t.List(ctx, prefix)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return nil, "", err
	}
	out := make(map[string]T, len(items))
	for _, i := range items {
		out[i.Object.Key()] = i.Object
	}
	return out, at, err
}
