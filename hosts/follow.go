// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/store"
)

// follow keeps the mirror like the store until ctx ends. Tell hears how it goes.
func (m *mirror) follow(ctx context.Context, s store.Store, tell func(about string, err error)) {
	told := func(err error) { tell("follow", err) }
	keep(ctx, told, func() error { return m.followWhole(ctx, s, told) })
}

// followWhole reads a whole world and then hears of all its changes. Whatever
// ends the watch of one table ends them all: the next world is whole again.
func (m *mirror) followWhole(ctx context.Context, s store.Store, tell func(error)) error {
	r, err := m.read(ctx, s)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	tell(err)
	m.replace(r)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	wg.Go(func() { stop(hear(ctx, m, s.Networks(), r.at[0], r.networks)) })
	wg.Go(func() { stop(hear(ctx, m, s.Nodes(), r.at[1], r.nodes)) })
	wg.Go(func() { stop(hear(ctx, m, s.Blocks(), r.at[2], r.blocks)) })
	wg.Go(func() { stop(hear(ctx, m, s.Endpoints(), r.at[last], r.endpoints)) })
	wg.Wait()
	return context.Cause(ctx)
}

// reading is a whole world, with the revisions at which its tables were read.
type reading struct {
	tables
	at [4]store.Revision
}

const last = 3 // table of a reading

// read lists all tables. Objects that cannot be read, as of a later version, are
// passed over, and stay what they were: who waited for them would have no presence
// meanwhile, and lose its block. The error is store.ErrUnreadable then.
func (m *mirror) read(ctx context.Context, s store.Store) (r *reading, err error) {
	r = new(reading)
	var unreadable []error
	for _, read := range []func() error{
		func() error { return readTable(ctx, s.Networks(), m.networks, &r.networks, &r.at[0]) },
		func() error { return readTable(ctx, s.Nodes(), m.nodes, &r.nodes, &r.at[1]) },
		func() error { return readTable(ctx, s.Blocks(), m.blocks, &r.blocks, &r.at[2]) },
		func() error { return readTable(ctx, s.Endpoints(), m.endpoints, &r.endpoints, &r.at[last]) },
	} {
		if err = read(); err != nil && !errors.Is(err, store.ErrUnreadable) {
			return nil, err
		}
		unreadable = append(unreadable, err)
	}
	for i := range r.at[1:] {
		if !r.at[i+1].Follows(r.at[i]) {
			return nil, errTorn
		}
	}
	return r, errors.Join(unreadable...)
}

// errTorn is a world of which no part goes with the other.
var errTorn = errors.New("the store became another one while it was read")

func readTable[T store.Object](ctx context.Context, t store.Table[T], known map[string]T, into *map[string]T, at *store.Revision) (err error) {
	*into, *at, err = listWithin(ctx, listTime, t, "")
	if errors.Is(err, store.ErrUnreadable) {
		addUnreadable(ctx, t, known, *into)
	}
	return err
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

// addUnreadable keeps what is known of objects that cannot be read now: a network,
// or the route to a block, must not go because a newer Patchbay wrote it.
func addUnreadable[T store.Object](ctx context.Context, t store.Table[T], known, items map[string]T) {
	for key, object := range known {
		if _, ok := items[key]; ok {
			continue
		}
		if _, err := t.Get(ctx, key); errors.Is(err, store.ErrUnreadable) {
			items[key] = object
		}
	}
}

// hear has the mirror follow one table, until the store says that we have to list
// again.
func hear[T store.Object](ctx context.Context, m *mirror, t store.Table[T], at store.Revision, into map[string]T) error {
	for e, err := range t.Watch(ctx, at) {
		if err != nil {
			return err
		}
		change(m, into, e)
	}
	return nil
}

func change[T store.Object](m *mirror, into map[string]T, e store.Event[T]) {
	m.mu.Lock()
	was, there := into[e.Object.Key()]
	if e.Gone {
		delete(into, e.Object.Key())
	} else {
		into[e.Object.Key()] = e.Object
	}
	m.cache.Heard, m.told = m.cache.Heard.With(e.Revision), time.Now()
	m.cache.Missing.forget(e.Object)
	m.mu.Unlock()
	if e.Gone || !there || !onlySeen(was, e.Object) {
		m.changed()
	}
}

// onlySeen says whether a node was seen again, and is as it was: nobody has to
// look at anything.
func onlySeen[T store.Object](was, now T) bool {
	a, is := any(was).(store.Node)
	b, _ := any(now).(store.Node)
	return is && sameNode(a, b)
}

// callTime bounds what is a few questions to an engine, such as to read an object and
// change it, or a short table. Engines bound each question by 5 s, and one that
// takes nearly that for each is slow, not away. A whole table is many questions.
const callTime, listTime = 20 * time.Second, 2 * time.Minute

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
