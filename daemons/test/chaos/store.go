// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// Store is what all clients share. It behaves like an etcd: it has one count of changes for all
// tables, a history with a name, and sessions.
type Store struct {
	rows      map[string]row // by table and key
	log       []change
	name      string // in the names of all histories
	rev       int64
	compacted int64
	histories int
	forked    bool // the store was restored, and no client has read it since
	sessions  map[int]*session
	begun     int
}

type row struct {
	data    []byte
	rev     int64
	session int
}

type change struct {
	table string
	store.Change
	rev int64
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{rows: map[string]row{}, sessions: map[int]*session{}, histories: 1, rev: 1}
}

func (s *Store) history() string { return fmt.Sprint(s.name, "h", s.histories) }

// Empty removes all data. Another history begins, as in a directory that was emptied.
func (s *Store) Empty() {
	*s = Store{rows: map[string]row{}, sessions: map[int]*session{}, name: s.name, histories: s.histories + 1, rev: 1, begun: s.begun}
}

// Backup returns a copy for Restore.
func (s *Store) Backup() *Store {
	b := *s
	b.rows, b.log, b.sessions = maps.Clone(s.rows), slices.Clone(s.log), maps.Clone(s.sessions)
	return &b
}

// Restore goes back to a backup. If a client reads before the next change, the revision shows it
// the loss. With the first change, the history gets another name, as if the first client had
// renamed it. Otherwise the lost changes and the new ones would have the same revisions.
func (s *Store) Restore(b *Store) {
	forked := s.forked || s.rev > b.rev || s.histories != b.histories
	histories, begun := s.histories, s.begun
	*s = *b.Backup()
	if s.histories != histories {
		s.histories = histories + 1
	}
	s.forked, s.begun = forked, begun
	for id, l := range s.sessions { // as when an etcd starts
		again := *l
		again.ends = time.Now().Add(l.ttl)
		s.sessions[id] = &again
	}
}

// RestoreAhead goes back to a backup of the same history, as etcdutl does with --bump-revision: the
// revision is higher than any that a client has seen, and objects have those of the backup. If
// compact is set, no watch can continue (--mark-compacted).
func (s *Store) RestoreAhead(b *Store, compact bool) {
	const ahead = 1000
	rev, histories := s.rev, s.histories
	forked := s.forked
	s.Restore(b)
	if s.rev, s.histories, s.forked = rev+ahead, histories, forked; compact {
		s.Compact()
	}
}

// Changed reports whether one of the objects of a backup has changed since, at a revision that seen
// has. The keys of seen have the table first. A backup of another history counts as unchanged.
func (s *Store) Changed(b *Store, seen map[string]store.Revision) bool {
	if b == nil || b.histories != s.histories || s.forked {
		return false
	}
	for path, r := range b.rows {
		if at, ok := seen[path]; ok && store.At(r.rev).Before(at) {
			return true
		}
	}
	return false
}

// Compact forgets all changes up to now.
func (s *Store) Compact() { s.log, s.compacted = nil, s.rev }

// commit makes one change.
func (s *Store) commit(table, key string, r row, gone bool) store.Revision {
	s.rev++
	if s.forked {
		s.histories, s.forked = s.histories+1, false
	}
	r.rev = s.rev
	if gone {
		delete(s.rows, table+"/"+key)
	} else {
		s.rows[table+"/"+key] = r
	}
	s.log = append(s.log, change{table, store.Change{Row: store.Row{Key: key, Data: r.data, Revision: store.At(s.rev)}, Deleted: gone}, s.rev})
	return store.At(s.rev)
}

// Put writes raw data in the place of an object. The data may have a newer schema, be damaged, or
// come from another writer.
func (s *Store) Put(table, key string, data []byte) { s.commit(table, key, row{data: data}, false) }

// Client is one agent's connection to the store.
type Client struct {
	store.Tables
	s      *Store
	closed bool

	// Away makes every call fail.
	Away bool
	// Before is called before each call, and may change anything. If it returns an error, the call
	// returns that error. If it returns made, the call makes its change all the same.
	Before func(call string) (made bool, err error)
	// Deleted is called with each object that this client deletes.
	Deleted func(table, key string, data []byte)
}

// ErrAway is the error of calls while Away is set.
var ErrAway = errors.New("the store is away")

// Client opens the store for one more agent.
func (s *Store) Client() *Client {
	c := &Client{s: s}
	c.Rows = func(table string) store.Rows { return rows{c, table} }
	return c
}

// Fork implements store.Store.
func (c *Client) Fork(_ context.Context, at store.Revision) error {
	return c.call("fork", func() error {
		if _, history, _ := at.Split(); history == c.s.history() {
			c.s.histories++
		}
		return nil
	})
}

// Close implements store.Store. The client no longer renews its sessions.
func (c *Client) Close() error { c.closed = true; return nil }

// call runs f. It does not run f if the client is closed or away, or if Before returns an error.
func (c *Client) call(name string, f func() error) error {
	var made bool
	var err error
	if c.Before != nil {
		made, err = c.Before(name)
	}
	switch {
	case c.closed:
		return store.ErrClosed
	case c.Away:
		return ErrAway
	case err != nil && !made:
		return err
	}
	if done := f(); err == nil {
		err = done
	}
	return err
}

type rows struct {
	c     *Client
	table string
}

func (t rows) at(key string) (row, bool) { r, ok := t.c.s.rows[t.table+"/"+key]; return r, ok }

func (t rows) call(verb, key string, f func() error) error {
	return t.c.call(verb+" "+t.table+" "+key, f)
}

func (t rows) Get(_ context.Context, key string) (out store.Row, err error) {
	err = t.call("get", key, func() error {
		r, ok := t.at(key)
		if !ok {
			return store.ErrNotFound
		}
		out = store.Row{Key: key, Data: r.data, Revision: store.At(r.rev)}
		return nil
	})
	return out, err
}

func (t rows) List(_ context.Context, prefix string) (out []store.Row, at store.Revision, err error) {
	err = t.call("list", prefix, func() error {
		for path, r := range t.c.s.rows {
			if key, ok := strings.CutPrefix(path, t.table+"/"); ok && strings.HasPrefix(key, prefix) {
				out = append(out, store.Row{Key: key, Data: r.data, Revision: store.At(r.rev)})
			}
		}
		at = store.InHistory(t.c.s.rev, t.c.s.history())
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	return out, at, nil
}

func (t rows) Create(_ context.Context, key string, data []byte, l store.Session) (at store.Revision, err error) {
	err = t.call("create", key, func() error {
		r := row{data: data}
		if l != nil {
			if r.session = l.(*session).id; t.c.s.sessions[r.session] == nil {
				return store.ErrSessionOver
			}
		}
		if _, ok := t.at(key); ok {
			return store.ErrExists
		}
		at = t.c.s.commit(t.table, key, r, false)
		return nil
	})
	return at, err
}

func (t rows) Update(_ context.Context, key string, data []byte, read store.Revision) (at store.Revision, err error) {
	err = t.call("update", key, func() error {
		r, ok := t.at(key)
		if !ok || store.At(r.rev) != read {
			return store.ErrConflict
		}
		at = t.c.s.commit(t.table, key, row{data: data, session: r.session}, false)
		return nil
	})
	return at, err
}

func (t rows) Delete(_ context.Context, key string, at store.Revision) error {
	return t.call("delete", key, func() error {
		r, ok := t.at(key)
		switch {
		case !ok:
			return nil
		case at != "" && store.At(r.rev) != at:
			return store.ErrConflict
		}
		t.c.s.commit(t.table, key, row{}, true)
		if t.c.Deleted != nil {
			t.c.Deleted(t.table, key, r.data)
		}
		return nil
	})
}

// Watch yields the pending changes and ends. The schedule decides when a client looks again.
func (t rows) Watch(_ context.Context, after store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		s := t.c.s
		at, history, _ := after.Split()
		err := t.call("watch", "", func() error {
			if history != s.history() || at > s.rev || at < s.compacted {
				return store.ErrCompacted
			}
			return nil
		})
		if err != nil {
			yield(store.Change{}, err)
			return
		}
		for _, c := range slices.Clone(s.log) {
			if c.rev > at && c.table == t.table && !yield(c.Change, nil) {
				return
			}
		}
	}
}

// session is renewed while its client is open and can reach the store.
type session struct {
	c    *Client
	id   int
	ttl  time.Duration
	ends time.Time
	ctx  context.Context //nolint:containedctx // it is what ends this
	lost chan struct{}
	over bool
}

// Session implements store.Store.
func (c *Client) Session(ctx context.Context, ttl time.Duration) (store.Session, error) {
	var l *session
	err := c.call("session", func() error {
		c.s.begun++
		l = &session{c: c, id: c.s.begun, ttl: ttl, ends: time.Now().Add(ttl), ctx: ctx, lost: make(chan struct{})}
		c.s.sessions[l.id] = l
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (l *session) Lost() <-chan struct{} { return l.lost }

func (l *session) End(context.Context) error {
	return l.c.call("end session", func() error { l.c.s.end(l.id); l.lose(); return nil })
}

// lose closes lost, unless a copy of the session from before a restore has closed it.
func (l *session) lose() {
	l.over = true
	select {
	case <-l.lost:
	default:
		close(l.lost)
	}
}

// Keep renews a client's session, as an agent does every few seconds. If the session is over,
// Keep notices that.
func (c *Client) Keep(kept store.Session) {
	l, ok := kept.(*session)
	switch {
	case !ok || l.over || c.Away || c.closed:
	case c.s.sessions[l.id] == nil:
		l.lose()
	case l.ctx.Err() == nil:
		l.ends = time.Now().Add(l.ttl)
		c.s.sessions[l.id] = l
	}
}

// Expire ends the sessions whose time is over, with all their objects.
func (s *Store) Expire() {
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		if time.Now().After(s.sessions[id].ends) {
			s.end(id)
		}
	}
}

func (s *Store) end(id int) {
	delete(s.sessions, id)
	for _, path := range slices.Sorted(maps.Keys(s.rows)) {
		if table, key, _ := strings.Cut(path, "/"); s.rows[path].session == id {
			s.commit(table, key, row{}, true)
		}
	}
}

var _ store.Store = (*Client)(nil)
