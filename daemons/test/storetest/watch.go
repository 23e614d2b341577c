// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// seen returns an event in the form that tests compare.
func seen[T store.Object](e store.Event[T]) string {
	if e.Deleted {
		return "-" + e.Object.Key()
	}
	return "+" + e.Object.Key() + "@" + string(e.Revision)
}

// events returns the next n events after a revision.
func events[T store.Object](s *suite, t store.Table[T], after store.Revision, n int) (got []string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	for e, err := range t.Watch(ctx, after) {
		s.must(err)
		if got = append(got, seen(e)); len(got) == n {
			return got
		}
	}
	s.Errorf("%d events in %v, want %d: %v", len(got), patience, n, got)
	return got
}

// listThenWatch: a watch repeats nothing of the list, and delivers all that follows.
func (s *suite) listThenWatch() {
	t := s.another().Entries()
	create(s, s.s.Entries(), endpoint("n", "h", "before"))
	items, revision, err := t.List(s.ctx, "")
	s.must(err)
	if len(items) != 1 {
		s.Errorf("list: %v", items)
	}
	var want []string
	for i := range 5 {
		e := endpoint("n", "h", fmt.Sprint("e", i))
		at := create(s, s.s.Entries(), e)
		create(s, s.s.Blocks(), block("n", fmt.Sprintf("10.0.%d.0/24", i), "h")) // a change of another table
		want = append(want, fmt.Sprintf("+%s@%s", e.Key(), at))
		at, err := s.s.Entries().Update(s.ctx, e, at)
		s.must(err)
		s.must(s.s.Entries().Delete(s.ctx, e.Key(), at))
		want = append(want, fmt.Sprintf("+%s@%s", e.Key(), at), "-"+e.Key())
	}
	s.same(events(s, t, revision, len(want)), want)
	for e, err := range t.Watch(s.ctx, revision) { // each event's revision is one to continue from
		s.must(err)
		s.same(events(s, t, e.Revision, len(want)-1), want[1:])
		break
	}
}

func (s *suite) watchFromTheBeginning() {
	n := Network("a")
	at := create(s, s.s.Networks(), n)
	create(s, s.s.Networks(), Network("b"))
	s.must(s.s.Networks().Delete(s.ctx, "b", ""))
	got := events(s, s.s.Networks(), "", 3)
	if got[0] != "+a@"+string(at) || got[2] != "-b" {
		s.Errorf("got %v", got)
	}
	first := make(chan []string)
	go func() { first <- events(s, s.s.Nodes(), "", 1) }() // of an empty table: it waits
	create(s, s.s.Nodes(), node("n"))
	if got := <-first; len(got) != 1 {
		s.Errorf("got %v", got)
	}
}

// watchEnds: a watch ends, without an error, when its ctx ends and when the caller leaves the loop.
func (s *suite) watchEnds() {
	_, revision, err := s.s.Networks().List(s.ctx, "")
	s.must(err)
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error)
	go func() {
		var last error
		for _, last = range s.s.Networks().Watch(ctx, revision) {
			continue
		}
		ended <- last
	}()
	time.AfterFunc(50*time.Millisecond, cancel)
	select {
	case err := <-ended:
		s.must(err)
	case <-time.After(patience):
		s.Error("a watch goes on after its ctx")
	}
	for _, err := range s.s.Networks().Watch(ctx, revision) {
		s.Errorf("a watch that ended before it began: %v", err)
	}
	if n := 0; true {
		for _, err := range s.s.Networks().Watch(s.ctx, "no revision") {
			if n++; err == nil || n > 1 {
				s.Errorf("watch from nowhere: %v", err)
			}
		}
	}
}

// watchLeavesNothing: no goroutine outlives the loop.
func (s *suite) watchLeavesNothing() {
	create(s, s.s.Networks(), Network("a"))
	events(s, s.s.Networks(), "", 1) // starts what an engine starts once
	before := runtime.NumGoroutine()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { events(s, s.s.Networks(), "", 1) })
	}
	all.Wait()
	s.eventually("goroutines of watches end", func() bool { return runtime.NumGoroutine() <= before+2 })
}

func (s *suite) eventually(what string, f func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !f(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("not in %v: %s", patience, what)
		}
	}
}

func (s *suite) compacted() {
	create(s, s.s.Networks(), Network("a"))
	_, old, err := s.s.Networks().List(s.ctx, "")
	s.must(err)
	at := create(s, s.s.Networks(), Network("b"))
	for range 3 {
		at, err = s.s.Networks().Update(s.ctx, Network("b"), at)
		s.must(err)
	}
	s.place.Compact(s.T)
	for _, from := range []store.Revision{"", old, "999999999"} { // the last is of a store that was lost and begun anew
		n := 0
		for _, err := range s.s.Networks().Watch(s.ctx, from) {
			s.is(err, store.ErrCompacted)
			if n++; n > 1 {
				s.Fatal("an error is not the last event")
			}
		}
	}
	items, now, err := s.s.Networks().List(s.ctx, "")
	s.must(err)
	if len(items) < 2 {
		s.Errorf("objects went with their history: %v", items)
	}
	create(s, s.s.Networks(), Network("after"))
	if got := events(s, s.s.Networks(), now, 1); got[0][:6] != "+after" {
		s.Errorf("got %v", got)
	}
}

// forked: after Fork, no later List follows an earlier one, and no watch continues from it. A second
// Fork of the same reading changes nothing.
func (s *suite) forked() {
	t := s.s.Networks()
	create(s, t, Network("before"))
	_, at, err := t.List(s.ctx, "")
	s.must(err)
	s.must(s.another().Fork(s.ctx, at))
	items, now, err := t.List(s.ctx, "")
	s.must(err)
	if now.Follows(at) || len(items) != 1 {
		s.Errorf("%s follows %s, with %d networks", now, at, len(items))
	}
	s.must(s.s.Fork(s.ctx, at))
	if _, again, err := t.List(s.ctx, ""); err != nil || !again.Follows(now) {
		s.Errorf("after a second call %s does not follow %s: %v", again, now, err)
	}
	for _, err := range t.Watch(s.ctx, at) {
		if !errors.Is(err, store.ErrCompacted) {
			s.Errorf("a watch from %s: %v", at, err)
		}
		break
	}
}

func (s *suite) unreadableInWatch() {
	_, revision, err := s.s.Networks().List(s.ctx, "")
	s.must(err)
	create(s, s.s.Networks(), Network("a"))
	s.place.Put(s.T, "networks", "future", []byte(`{"schema":99,"object":{}}`))
	var got []string
	for e, err := range s.s.Networks().Watch(s.ctx, revision) {
		if err != nil {
			s.is(err, store.ErrUnreadable)
			got = append(got, "error")
			continue
		}
		got = append(got, e.Object.Key())
	}
	s.same(got, []string{"a", "error"})
	_, revision, err = s.s.Networks().List(s.ctx, "")
	s.is(err, store.ErrUnreadable)
	s.must(s.s.Networks().Delete(s.ctx, "future", ""))
	s.same(events(s, s.s.Networks(), revision, 1), []string{"-future"})
}

// watchersAgree: many watchers see all changes of many writers in the same order.
func (s *suite) watchersAgree() {
	const watchers, writers, each = 8, 4, 10
	_, revision, err := s.s.Entries().List(s.ctx, "")
	s.must(err)
	stores := []store.Store{s.s, s.another()}
	var all sync.WaitGroup
	got := make([][]string, watchers)
	for i := range watchers {
		all.Go(func() { got[i] = events(s, stores[i%2].Entries(), revision, writers*each) })
	}
	for w := range writers {
		all.Go(func() {
			for i := range each {
				_, err := stores[w%2].Entries().Create(s.ctx, endpoint("n", fmt.Sprint("h", w), fmt.Sprint(i)), nil)
				if err != nil {
					s.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, g := range got[1:] {
		if !slices.Equal(g, got[0]) {
			s.Errorf("one saw %v\nanother %v", got[0], g)
		}
	}
}

func (s *suite) closed() {
	other := s.another()
	_, revision, err := other.Networks().List(s.ctx, "")
	s.must(err)
	l, err := other.Session(s.ctx, time.Hour)
	s.must(err)
	ended := make(chan error)
	go func() {
		for _, err := range other.Networks().Watch(s.ctx, revision) {
			ended <- err
		}
		close(ended)
	}()
	<-time.After(20 * time.Millisecond) // both ways to end are right: before it began, and during it
	s.must(other.Close())
	s.must(other.Close())
	s.is(<-ended, store.ErrClosed)
	<-l.Lost()
	_, err = other.Networks().Get(s.ctx, "a")
	s.is(err, store.ErrClosed)
	_, err = other.Session(s.ctx, time.Minute)
	s.is(err, store.ErrClosed)
	_, err = s.s.Networks().Get(s.ctx, "a")
	s.is(err, store.ErrNotFound)
}

func (s *suite) context() {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if _, err := s.s.Networks().Get(ctx, "a"); !errors.Is(err, context.Canceled) {
		s.Errorf("get: %v", err)
	}
	if _, err := s.s.Networks().Create(ctx, Network("a"), nil); !errors.Is(err, context.Canceled) {
		s.Errorf("create: %v", err)
	}
	if _, err := s.s.Session(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		s.Errorf("lease: %v", err)
	}
}
