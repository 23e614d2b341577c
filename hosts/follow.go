// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/store"
)

// follow keeps the mirror like the store until ctx ends. Tell hears how it goes
// with each table.
func (m *mirror) follow(ctx context.Context, s store.Store, tell func(about string, err error)) {
	m.tables = tablesOf(&m.cache) // until they are heard nobody looks at them
	go followTable(ctx, follower[store.Network]{m, s.Networks(), m.networks, &m.heard[0], tell, "networks"})
	go followTable(ctx, follower[store.Node]{m, s.Nodes(), m.nodes, &m.heard[1], tell, "nodes"})
	go followTable(ctx, follower[store.Block]{m, s.Blocks(), m.blocks, &m.heard[2], tell, "blocks"})
	go followTable(ctx, follower[store.Endpoint]{m, s.Endpoints(), m.endpoints, &m.heard[3], tell, "endpoints"})
}

// againAfter is how long a store that failed is left alone, at first and at last:
// hundreds of hosts ask one that is just back for everything.
const againAfter, againAtLast = time.Second, 15 * time.Second

// keep calls fn again and again until ctx ends.
func keep(ctx context.Context, failed func(error), fn func() error) {
	for pause := againAfter; ctx.Err() == nil; pause = min(2*pause, againAtLast) {
		began := time.Now()
		err := fn()
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
		if err == nil || time.Since(began) > againAtLast {
			pause = againAfter // it was well for a while
		}
		sleep.For(ctx, jitter(pause))
	}
}

// jitter is about d, and not the same for all hosts.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

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
// are passed over, and stay what they were: who waited for them would have no
// presence meanwhile, and lose its block.
func (f *follower[T]) follow(ctx context.Context) error {
	items, at, err := listWithin(ctx, listTime, f.table, "")
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	f.tell("follow "+f.name, err)
	if err != nil {
		f.addUnreadable(ctx, items)
	}
	f.replace(items)
	for e, err := range f.table.Watch(ctx, at) {
		if err != nil {
			return err
		}
		f.change(e)
	}
	return nil
}

// addUnreadable keeps what is known of objects that cannot be read now: a network,
// or the route to a block, must not go because a newer Patchbay wrote it.
func (f *follower[T]) addUnreadable(ctx context.Context, items map[string]T) {
	f.m.mu.Lock()
	known := maps.Clone(f.into)
	f.m.mu.Unlock()
	for key, object := range known {
		if _, ok := items[key]; ok {
			continue
		}
		if _, err := f.table.Get(ctx, key); errors.Is(err, store.ErrUnreadable) {
			items[key] = object
		}
	}
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
	was, there := f.into[e.Object.Key()]
	if e.Gone {
		delete(f.into, e.Object.Key())
	} else {
		f.into[e.Object.Key()] = e.Object
	}
	f.m.mu.Unlock()
	if e.Gone || !there || !onlySeen(was, e.Object) {
		f.m.changed()
	}
}

// onlySeen says whether a node was seen again, and is as it was: nobody has to
// look at anything.
func onlySeen[T store.Object](was, now T) bool {
	a, is := any(was).(store.Node)
	b, _ := any(now).(store.Node)
	return is && sameNode(a, b)
}

// callTime bounds one call of the store. A whole table is many calls: engines bound
// each, and a store that answers slowly must not be asked for all again.
const callTime, listTime = 5 * time.Second, 2 * time.Minute

// list is a table's objects by key. With an error that is store.ErrUnreadable
// come those that can be read.
func list[T store.Object](ctx context.Context, t store.Table[T], prefix string) (map[string]T, store.Revision, error) {
	return listWithin(ctx, callTime, t, prefix)
}

func listWithin[T store.Object](ctx context.Context, most time.Duration, t store.Table[T], prefix string) (map[string]T, store.Revision, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
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
