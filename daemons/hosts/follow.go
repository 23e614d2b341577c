// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/internal/doubt"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// follow keeps the mirror equal to the store until ctx ends. It reports errors of the store.
func (m *mirror) follow(ctx context.Context, s store.Store, report func(subject string, err error)) {
	failed := func(err error) { report("follow", err) }
	resident.Repeat(ctx, failed, func() error { return m.followWhole(ctx, s, failed) })
}

// followWhole reads the whole store, and then watches all its tables. If the watch of one table
// ends, it ends all watches, so that the next read is whole again.
func (m *mirror) followWhole(ctx context.Context, s store.Store, report func(error)) error {
	r, err := m.readSound(ctx, s)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	report(err)
	m.replace(r)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	m.onReadAgain(func() { stop(errWentBack) })
	defer m.onReadAgain(nil)
	var wg sync.WaitGroup
	wg.Go(func() { stop(watchTable(ctx, m, &m.networks, s.Networks(), r.at[0])) })
	wg.Go(func() { stop(watchTable(ctx, m, &m.nodes, s.Nodes(), r.at[1])) })
	wg.Go(func() { stop(watchTable(ctx, m, &m.blocks, s.Blocks(), r.at[2])) })
	wg.Go(func() { stop(watchTable(ctx, m, &m.endpoints, s.Entries(), r.at[last])) })
	wg.Wait()
	return context.Cause(ctx)
}

// onReadAgain sets what readAgain calls.
func (m *mirror) onReadAgain(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reread = do
}

// reading is one read of the whole store, with the revision at which each table was read.
type reading struct {
	networks  map[string]store.Network
	nodes     map[string]store.Node
	blocks    map[string]store.Block
	endpoints map[string]store.Entry

	at   [4]store.Revision
	seen witness
}

const last = 3 // the table that is read last

// read lists all tables. If an object cannot be read, for example because a later version wrote
// it, the object keeps its known value, and the error is store.ErrUnreadable. An agent that
// waited until it could read all objects would lose its session, and then its block.
func (m *mirror) read(ctx context.Context, s store.Store) (r *reading, err error) {
	r = new(reading)
	var unreadable []error
	for _, read := range []func() error{
		func() error { return readTable(ctx, m, r, s.Networks(), &m.networks, &r.networks, &r.at[0]) },
		func() error { return readTable(ctx, m, r, s.Nodes(), &m.nodes, &r.nodes, &r.at[1]) },
		func() error { return readTable(ctx, m, r, s.Blocks(), &m.blocks, &r.blocks, &r.at[2]) },
		func() error { return readTable(ctx, m, r, s.Entries(), &m.endpoints, &r.endpoints, &r.at[last]) },
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

// errTorn means that two tables were read from different histories of the store.
var errTorn = errors.New("the store was replaced while it was read")

func readTable[T store.Object](ctx context.Context, m *mirror, r *reading, t store.Table[T], known *doubt.Table[T], into *map[string]T, at *store.Revision) (err error) {
	*into, *at, err = listWithin(ctx, listTime, t, "", r.seen.see)
	if errors.Is(err, store.ErrUnreadable) {
		m.mu.Lock()
		all := known.AllByKey()
		m.mu.Unlock()
		addUnreadable(ctx, t, all, *into)
	}
	return err
}

// addUnreadable adds the known values of objects that cannot be read now. A newer Patchbay may
// have written a network or a block. Then the network, or the route to the block, must not
// disappear.
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

// watchTable applies the events of one table to the mirror. It ends when the table must be
// listed again.
func watchTable[T store.Object](ctx context.Context, m *mirror, into *doubt.Table[T], t store.Table[T], at store.Revision) error {
	for e, err := range t.Watch(ctx, at) {
		if err != nil {
			return err
		}
		change(m, into, e)
	}
	return nil
}

func change[T store.Object](m *mirror, into *doubt.Table[T], e store.Event[T]) {
	m.mu.Lock()
	was, there := into.GetPresent(e.Object.Key())
	if e.Deleted {
		into.Delete(e.Object.Key())
	} else {
		into.Put(e.Object.Key(), e.Object)
	}
	if m.cache.Heard, m.updated = m.cache.Heard.With(e.Revision), time.Now(); e.Deleted {
		m.cache.Seen.drop(e.Object)
	} else {
		m.cache.Seen.see(e.Object, e.Revision)
	}
	m.mu.Unlock()
	if e.Deleted || !there || !onlySeen(was, e.Object) {
		m.changed()
	}
}

// onlySeen reports whether an event changed only the time in a node's record. Such an event needs
// no work.
func onlySeen[T store.Object](was, now T) bool {
	a, is := any(was).(store.Node)
	b, _ := any(now).(store.Node)
	return is && sameNode(a, b)
}

// callTime limits a few requests, such as reading an object and changing it, or listing a short
// table. An engine limits each request to 5 s. So a request that takes nearly that long is slow,
// but the engine can be reached. listTime limits the list of a whole table, which needs many
// requests.
const callTime, listTime = 20 * time.Second, 2 * time.Minute

// list returns the objects of a table by key. If some cannot be read, it returns the others and
// store.ErrUnreadable.
func list[T store.Object](ctx context.Context, t store.Table[T], prefix string) (map[string]T, store.Revision, error) {
	return listWithin(ctx, callTime, t, prefix, func(store.Object, store.Revision) {})
}

// listWithin implements list within a time, and calls see with each object.
func listWithin[T store.Object](ctx context.Context, most time.Duration, t store.Table[T], prefix string, see func(store.Object, store.Revision)) (map[string]T, store.Revision, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	items, at, err := t.List(ctx, prefix)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return nil, "", err
	}
	out := make(map[string]T, len(items))
	for _, i := range items {
		out[i.Object.Key()] = i.Object
		see(i.Object, i.Revision)
	}
	return out, at, err
}
