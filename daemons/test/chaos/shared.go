// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// Shared is a Store for agents that run by themselves, without a schedule. It keeps the contract of
// package store (daemons/test/storetest), and takes the time of no etcd.
type Shared struct {
	mu   sync.Mutex
	s    *Store
	news chan struct{} // closed with the next change
}

// NewShared returns an empty store, with a history of its own.
func NewShared() *Shared {
	s := &Shared{s: NewStore(), news: make(chan struct{})}
	s.s.name = rand.Text()
	return s
}

// Put writes raw data in the place of an object, as Store.Put does.
func (s *Shared) Put(table, key string, data []byte) {
	_ = s.do(func() error { s.s.Put(table, key, data); return nil })
}

// Backup returns a copy for RestoreAhead.
func (s *Shared) Backup() (b *Store) {
	_ = s.do(func() error { b = s.s.Backup(); return nil })
	return b
}

// RestoreAhead goes back to a backup, as Store.RestoreAhead does. No watch can continue.
func (s *Shared) RestoreAhead(b *Store) {
	_ = s.do(func() error { s.s.RestoreAhead(b, true); return nil })
}

// Changed reports whether an object of a backup has changed, as Store.Changed does.
func (s *Shared) Changed(b *Store, seen map[string]store.Revision) (changed bool) {
	_ = s.do(func() error { changed = s.s.Changed(b, seen); return nil })
	return changed
}

// Compact forgets all changes up to now.
func (s *Shared) Compact() { _ = s.do(func() error { s.s.Compact(); return nil }) }

// do makes a call, alone, and wakes each Watch if the call changed something.
func (s *Shared) do(call func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.s.rev
	err := call()
	if s.s.rev != before {
		close(s.news)
		s.news = make(chan struct{})
	}
	return err
}

// Live is a client of a Shared. It renews its sessions by itself, and its watches wait for changes.
type Live struct {
	store.Tables
	of     *Shared
	c      *Client
	closed chan struct{}
}

// Open opens the store for one more agent.
func (s *Shared) Open() *Live {
	l := &Live{of: s, c: s.s.Client(), closed: make(chan struct{})}
	l.Rows = func(table string) store.Rows { return liveRows{l, rows{l.c, table}} }
	return l
}

// Fork implements store.Store.
func (l *Live) Fork(ctx context.Context, at store.Revision) error {
	return l.of.do(func() error { return l.c.Fork(ctx, at) })
}

// Close implements store.Store.
func (l *Live) Close() error {
	return l.of.do(func() error {
		if l.c.closed {
			return nil
		}
		close(l.closed)
		for _, s := range l.of.s.sessions {
			if s.c == l.c {
				l.leave(s)
			}
		}
		return l.c.Close()
	})
}

// call makes a call, unless ctx has ended.
func (l *Live) call(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return l.of.do(f)
}

// liveSession is a session that its client renews.
type liveSession struct {
	l *Live
	*session
}

// Session implements store.Store.
func (l *Live) Session(ctx context.Context, ttl time.Duration) (out store.Session, err error) {
	err = l.call(ctx, func() error {
		s, err := l.c.Session(ctx, ttl)
		if err != nil {
			return err
		}
		made := s.(*session)
		context.AfterFunc(ctx, func() { _ = l.of.do(func() error { l.leave(made); return nil }) })
		out = liveSession{l, made}
		return nil
	})
	return out, err
}

// leave no longer renews a session, which ends when its ttl is over.
func (l *Live) leave(s *session) {
	if s.over {
		return
	}
	s.lose()
	time.AfterFunc(s.ttl, func() { _ = l.of.do(func() error { l.of.s.end(s.id); return nil }) })
}

// End implements store.Session.
func (s liveSession) End(ctx context.Context) error {
	return s.l.call(ctx, func() error { return s.session.End(ctx) })
}

// liveRows is a table of a Live. The calls of rows are made one after the other.
type liveRows struct {
	l *Live
	rows
}

func (r liveRows) Get(ctx context.Context, key string) (out store.Row, err error) {
	err = r.l.call(ctx, func() (err error) { out, err = r.rows.Get(ctx, key); return err })
	return out, err
}

func (r liveRows) List(ctx context.Context, prefix string) (out []store.Row, at store.Revision, err error) {
	err = r.l.call(ctx, func() (err error) { out, at, err = r.rows.List(ctx, prefix); return err })
	return out, at, err
}

func (r liveRows) Create(ctx context.Context, key string, data []byte, s store.Session) (at store.Revision, err error) {
	ours, ok := s.(liveSession)
	if s != nil && (!ok || ours.l != r.l) {
		return "", errors.New("the session belongs to another store")
	}
	err = r.l.call(ctx, func() (err error) {
		switch {
		case s == nil:
			at, err = r.rows.Create(ctx, key, data, nil)
		case ours.over:
			err = store.ErrSessionOver
		default:
			at, err = r.rows.Create(ctx, key, data, ours.session)
		}
		return err
	})
	return at, err
}

func (r liveRows) Update(ctx context.Context, key string, data []byte, read store.Revision) (at store.Revision, err error) {
	err = r.l.call(ctx, func() (err error) { at, err = r.rows.Update(ctx, key, data, read); return err })
	return at, err
}

func (r liveRows) Delete(ctx context.Context, key string, at store.Revision) error {
	return r.l.call(ctx, func() error { return r.rows.Delete(ctx, key, at) })
}

// Watch yields each change as it is made.
func (r liveRows) Watch(ctx context.Context, after store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		_, _, err := after.Split()
		for err == nil && ctx.Err() == nil {
			var pending []store.Change
			var news <-chan struct{}
			if pending, after, news, err = r.pending(ctx, after); err != nil {
				break
			}
			for _, c := range pending {
				if !yield(c, nil) {
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-r.l.closed:
			case <-news:
			}
		}
		if ctx.Err() == nil {
			yield(store.Change{}, err)
		}
	}
}

// pending returns the changes after a revision, the revision that follows them, and what the next
// change closes. The zero revision, and that of an event, are of any history.
func (r liveRows) pending(ctx context.Context, after store.Revision) (out []store.Change, next store.Revision, news <-chan struct{}, err error) {
	err = r.l.call(ctx, func() error {
		at, history, _ := after.Split()
		if history == "" {
			history = r.c.s.history()
		}
		for c, err := range r.rows.Watch(ctx, store.InHistory(at, history)) {
			if err != nil {
				return err
			}
			out = append(out, c)
		}
		next, news = store.InHistory(r.c.s.rev, history), r.l.of.news
		return nil
	})
	return out, next, news, err
}

var _ store.Store = (*Live)(nil)
