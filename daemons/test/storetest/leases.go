// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

func (s *suite) lease(ttl time.Duration) store.Session {
	s.Helper()
	l, err := s.s.Session(s.ctx, ttl)
	s.must(err)
	return l
}

func (s *suite) leaseEnds() {
	l, t := s.lease(time.Hour), s.s.Entries()
	other := s.another().Entries()
	_, revision, err := other.List(s.ctx, "")
	s.must(err)
	at, err := t.Create(s.ctx, endpoint("n", "h", "leased"), l)
	s.must(err)
	_, err = t.Update(s.ctx, endpoint("n", "h", "leased"), at) // it is still on the lease
	s.must(err)
	create(s, t, endpoint("n", "h", "free"))
	select {
	case <-l.Lost():
		s.Error("the lease is lost")
	default:
	}
	s.must(l.End(s.ctx))
	s.must(l.End(s.ctx))
	<-l.Lost()
	_, err = other.Get(s.ctx, "n/h/leased")
	s.is(err, store.ErrNotFound)
	_, err = other.Get(s.ctx, "n/h/free")
	s.must(err)
	if got := events(s, other, revision, 4); got[3] != "-n/h/leased" {
		s.Errorf("watchers saw %v", got)
	}
	_, err = t.Create(s.ctx, endpoint("n", "h", "late"), l)
	s.is(err, store.ErrSessionOver)
}

// leaseOfMany: a watch that restarts from any event misses none, although all objects of
// the lease went at once.
func (s *suite) leaseOfMany() {
	l := s.lease(time.Hour)
	want := map[string]bool{}
	for i := range 5 {
		e := endpoint("n", "h", fmt.Sprint("e", i))
		want[e.Key()] = true
		_, err := s.s.Entries().Create(s.ctx, e, l)
		s.must(err)
	}
	_, at, err := s.s.Entries().List(s.ctx, "")
	s.must(err)
	s.must(l.End(s.ctx))
	for _, leave := range []int{2, 1, 0} { // leaves once within the list, once at the first event, and once after all
		told := 0
		for e, err := range s.s.Entries().Watch(s.ctx, at) {
			s.must(err)
			if !e.Deleted {
				s.Errorf("%q came", e.Object.Key())
			}
			at = e.Revision
			delete(want, e.Object.Key())
			if told++; told == leave || len(want) == 0 {
				break
			}
		}
	}
	if len(want) > 0 {
		s.Errorf("no event for %v", want)
	}
}

// kept is a lease that is watched until its ttl is over for long.
type kept struct {
	lease store.Session
	end   <-chan time.Time
	gone  chan string // what the watch of its object delivered
	node  func(context.Context) error
}

func beginKept(t testing.TB, p Place, ttl time.Duration) *kept {
	t.Helper()
	s, other := p.Open(t), p.Open(t)
	l, err := s.Session(t.Context(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Nodes().Create(t.Context(), node("n"), l)
	if err != nil {
		t.Fatal(err)
	}
	_, at, err := other.Nodes().List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	k := &kept{lease: l, end: time.After(ttl * 3 / 2), gone: make(chan string, 1)}
	k.node = func(ctx context.Context) error { _, err := other.Nodes().Get(ctx, "n"); return err }
	go func() {
		for e, err := range other.Nodes().Watch(t.Context(), at) {
			k.gone <- fmt.Sprint(seen(e), err)
			return
		}
	}()
	return k
}

// check waits until then.
func (k *kept) check(t *testing.T) {
	select {
	case <-k.end:
	case event := <-k.gone:
		t.Errorf("its object: %s", event)
	case <-k.lease.Lost():
		t.Error("the lease is lost")
	}
	if err := k.node(t.Context()); err != nil {
		t.Error(err)
	}
}

// leaseIsLost checks that a lease that is not renewed ends, and that a watcher gets the deletions.
func (s *suite) leaseIsLost() {
	ctx, cancel := context.WithCancel(s.ctx)
	l, err := s.s.Session(ctx, time.Second)
	s.must(err)
	other := s.another().Entries()
	_, revision, err := other.List(s.ctx, "")
	s.must(err)
	_, err = s.s.Entries().Create(s.ctx, endpoint("n", "h", "e"), l)
	s.must(err)
	cancel()
	<-l.Lost()
	if got := events(s, other, revision, 2); got[1] != "-n/h/e" {
		s.Errorf("watchers saw %v", got)
	}
	items, _, err := other.List(s.ctx, "")
	s.must(err)
	s.same(items, []store.Item[store.Entry]{})
	_, err = s.s.Entries().Create(s.ctx, endpoint("n", "h", "late"), l)
	s.is(err, store.ErrSessionOver)
}

// leaseOfAnother checks that a lease is valid only in the store that gave it.
func (s *suite) leaseOfAnother() {
	l := s.lease(time.Hour)
	if _, err := s.another().Nodes().Create(s.ctx, node("n"), l); err == nil {
		s.Error("another store took the lease")
	}
	s.must(l.End(s.ctx))
}

// oneWinner lets many hosts create the same block. One succeeds.
func (s *suite) oneWinner() {
	stores := []store.Store{s.s, s.another()}
	for round := range 5 {
		prefix := fmt.Sprintf("10.1.%d.0/24", round)
		var won atomic.Int32
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				_, err := stores[i%2].Blocks().Create(s.ctx, block("n", prefix, fmt.Sprint(i)), nil)
				switch {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, store.ErrExists):
					s.Error(err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			s.Errorf("%d got %s", won.Load(), prefix)
		}
	}
}

// counters checks that no compare-and-swap overwrites another one.
func (s *suite) counters() {
	const adders, each = 8, 5
	stores := []store.Store{s.s, s.another()}
	create(s, s.s.Networks(), store.Network{Name: "n"})
	var all sync.WaitGroup
	for i := range adders {
		all.Go(func() {
			for done := 0; done < each; {
				item, err := stores[i%2].Networks().Get(s.ctx, "n")
				if err != nil {
					s.Error(err)
					return
				}
				item.Object.MTU++
				switch _, err = stores[i%2].Networks().Update(s.ctx, item.Object, item.Revision); {
				case err == nil:
					done++
				case !errors.Is(err, store.ErrConflict):
					s.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if item, err := s.s.Networks().Get(s.ctx, "n"); err != nil || item.Object.MTU != adders*each {
		s.Errorf("counted %d, %v; want %d", item.Object.MTU, err, adders*each)
	}
}
