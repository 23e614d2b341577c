// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// fronted starts an etcd that is reached directly and through a network that can be cut.
func fronted(t *testing.T) (server *server, between *front, direct, s *Engine) {
	t.Helper()
	server = newServer(t)
	between = newFront(t, server.endpoint)
	o := server.options(t)
	direct = open(t, o)
	o.Endpoints = []string{between.addr}
	return server, between, direct, open(t, o)
}

// An etcd lost its data, and before a watch looked again, the new revisions passed the watch's
// revision. The watch must notice that it missed changes.
func TestAnotherHistory(t *testing.T) {
	t.Parallel()
	for name, watching := range map[string]bool{"a watch that stands": true, "a watch from a revision": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, front, direct, s := fronted(t)
			_, err := s.Networks().Create(t.Context(), network("old"), nil)
			must(t, err)
			_, revision, err := s.Networks().List(t.Context(), "")
			must(t, err)
			var keys <-chan string
			if watching {
				keys = watched(t.Context(), s.Networks(), revision)
				_, err = direct.Networks().Create(t.Context(), network("last"), nil)
				must(t, err)
				want(t, keys, "+last")
			}
			front.cut()
			server.anew()
			for i := range 9 {
				again(t, func() error {
					_, err := direct.Networks().Create(t.Context(), network(fmt.Sprint("n", i)), nil)
					return err
				})
			}
			front.join()
			if !watching {
				keys = watched(t.Context(), s.Networks(), revision)
			}
			want(t, keys, "compacted")
		})
	}
}

// An etcd was restored from a backup. The first watch that notices this renames the history, so
// that watches which look later notice it too.
func TestRestored(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	s := open(t, server.options(t))
	ctx := t.Context()
	create := func(name string) {
		t.Helper()
		again(t, func() error { _, err := s.Networks().Create(ctx, network(name), nil); return err })
	}
	create("a")
	_, early, err := s.Networks().List(ctx, "")
	must(t, err)
	for _, name := range []string{"b", "c", "d"} {
		create(name)
	}
	_, late, err := s.Networks().List(ctx, "")
	must(t, err)
	server.anew() // and the history of before, as a backup has it
	_, history, err := early.Split()
	must(t, err)
	again(t, func() error {
		return s.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.Put(ctx, s.prefix+"history", history)
			return err
		})
	})
	want(t, watched(ctx, s.Networks(), late), "compacted")
	for i := range 9 {
		create(fmt.Sprint("n", i))
	}
	want(t, watched(ctx, s.Networks(), early), "compacted")
}

// After its connection breaks a watch continues where it was, in the same history.
func TestConnectionBreaks(t *testing.T) {
	t.Parallel()
	_, front, direct, s := fronted(t)
	_, revision, err := s.Networks().List(t.Context(), "")
	must(t, err)
	keys := watched(t.Context(), s.Networks(), revision)
	for _, name := range []string{"a", "b", "c"} {
		front.cut()
		_, err := direct.Networks().Create(t.Context(), network(name), nil)
		must(t, err)
		front.join()
		want(t, keys, "+"+name)
	}
}

// An etcd is compacted after each change, and defragmented, while the network breaks again and
// again. A client that lists whenever the watch requires it has all objects in the end.
func TestCompactedAllTheTime(t *testing.T) {
	t.Parallel()
	server, between, direct, s := fronted(t)
	table, ctx := direct.Networks(), t.Context()
	has := make(chan string, 1)
	go follow(ctx, s.Networks(), has)
	want := map[string]bool{}
	for i := range 60 {
		name := fmt.Sprint("n", i%7)
		if want[name] {
			must(t, table.Delete(ctx, name, ""))
		} else {
			_, err := table.Create(ctx, network(name), nil)
			must(t, err)
		}
		want[name] = !want[name]
		compact(t, direct)
		switch i % 12 {
		case 6:
			between.cut()
			must(t, direct.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
				_, err := c.Defragment(ctx, "http://"+server.endpoint)
				return err
			}))
		case 9:
			between.join()
		}
	}
	maps.DeleteFunc(want, func(_ string, there bool) bool { return !there })
	last, late := "", time.After(patience)
	for last != fmt.Sprint(want) {
		select {
		case last = <-has:
		case <-late:
			t.Fatalf("the table is known to have %s, want %v", last, want)
		}
	}
}

// follow mirrors a table, and publishes each change; no reader is needed.
func follow(ctx context.Context, t store.Table[store.Network], has chan string) {
	for ctx.Err() == nil {
		items, at, err := t.List(ctx, "")
		if err != nil {
			continue
		}
		now := map[string]bool{}
		for _, i := range items {
			now[i.Object.Name] = true
		}
		publish(has, now)
		for e, err := range t.Watch(ctx, at) {
			if err != nil {
				break
			}
			if delete(now, e.Object.Name); !e.Deleted {
				now[e.Object.Name] = true
			}
			publish(has, now)
		}
	}
}

// publish replaces a value that was not read yet.
func publish(has chan string, now map[string]bool) {
	select {
	case <-has:
	default:
	}
	has <- fmt.Sprint(now)
}
