// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package store defines what hosts share: networks, nodes, which node holds each block of
// addresses, and which containers are on each host (docs/hosts.md). Its interface has a Go type
// for each kind of object. Tables implements the interface on rows of bytes. So one place defines the content of
// rows, the form of keys and which objects are refused. Package daemons/hosts/store/etcd stores the rows in etcd,
// and daemons/test/chaos stores them in memory.
//
// A plugin that connects a container never reads the store. While the store cannot be reached,
// a node continues with the block that it holds.
package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
)

// Calls return these errors. An engine may return other errors too, for example if it is
// unreachable or refuses the login. After such an error, the change may or may not have been made.
// So the caller reads again or retries.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	// ErrConflict means that the object has changed since it was read: read it again.
	ErrConflict = errors.New("changed meanwhile")
	// ErrCompacted means that the engine no longer has the revision at which a Watch should
	// begin: list again.
	ErrCompacted = errors.New("revision is too old to watch from")
	// ErrUnreadable means that an object is damaged, or that a newer Patchbay wrote it. The error
	// gives the reason. Delete without a revision removes such an object.
	ErrUnreadable = errors.New("unreadable")
	// ErrName means that no engine accepts a name; Table says which it accepts.
	ErrName = errors.New("bad name")
	// ErrSessionOver means that a session has ended and cannot be used.
	ErrSessionOver = errors.New("the session is over")
	// ErrClosed means that the store has been closed and cannot be used.
	ErrClosed = errors.New("the store is closed")
)

// Unreadable is the error for one object that List leaves out. It wraps ErrUnreadable.
type Unreadable struct {
	Key string
	Err error
}

func (u *Unreadable) Error() string { return u.Err.Error() }
func (u *Unreadable) Unwrap() error { return u.Err }

// UnreadableKeys returns the keys of the objects that a List left out, from the error of that
// List.
func UnreadableKeys(err error) (keys []string) {
	var u *Unreadable
	if all, many := err.(interface{ Unwrap() []error }); many {
		for _, err := range all.Unwrap() {
			keys = append(keys, UnreadableKeys(err)...)
		}
	} else if errors.As(err, &u) {
		keys = append(keys, u.Key)
	}
	return keys
}

// Revision is a point in the history of a Table, or of an object in it. The engine defines its
// form, so a caller can only pass it back. The zero value means that there is no revision.
type Revision string

// Store holds the four tables. Its methods are safe for concurrent use.
type Store interface {
	Networks() Table[Network]
	Nodes() Table[Node]
	Blocks() Table[Block]
	Entries() Table[Entry]

	// Session begins a session. The store renews the session until ctx ends, End is called, the
	// store is closed, or the engine reports that the session is over because it could not be
	// reached for longer than ttl. ttl must be at least a second. Engines round it up to whole
	// seconds.
	Session(ctx context.Context, ttl time.Duration) (Session, error)
	// Fork gives the store's history a new name. at is the revision that a List returned. If the history has a new name
	// already, Fork does nothing. The new name shows every host that the store went back, for example because a backup
	// was restored, even if the store's revision is higher than before.
	Fork(ctx context.Context, at Revision) error
	// Close ends every Watch with ErrClosed. It stops the renewal of sessions, but their objects
	// stay until the sessions expire. So a host does not seem absent while its agent restarts.
	Close() error
}

// Session shows that one host is present. Objects that were created with it disappear when it
// ends.
type Session interface {
	// Lost is closed when the session is no longer renewed. The objects are gone by then, or, if
	// ctx has ended, will be gone within ttl. While the engine is unreachable, Lost stays open,
	// because it is not known whether the session has ended.
	Lost() <-chan struct{}
	// End removes the objects of the session at once. It may be called twice.
	End(ctx context.Context) error
}

// Object is an entry of a table. Key returns its key.
type Object interface{ Key() string }

// Item is an object with the revision of its last change.
type Item[T Object] struct {
	Object   T
	Revision Revision
}

// Event is one change. If Deleted is set, only the fields of the object's key are certain.
type Event[T Object] struct {
	Item[T]
	Deleted bool
}

// Table holds all objects of one kind. The names in a key consist of ASCII letters, digits and
// "_.-:", and begin with a letter, a digit, "_" or ":". A key has at most 200 bytes. A call
// with another name returns ErrName and changes nothing.
type Table[T Object] interface {
	// Get returns one object, or ErrNotFound.
	Get(ctx context.Context, key string) (Item[T], error)
	// List returns all objects whose key begins with prefix, sorted by key, and the revision from
	// which to watch. If some objects cannot be read, List returns the valid others. Its error is
	// then ErrUnreadable and names the missing ones.
	List(ctx context.Context, prefix string) ([]Item[T], Revision, error)
	// Create adds an object, or returns ErrExists. session may be nil; otherwise the object
	// disappears when the session ends.
	Create(ctx context.Context, object T, session Session) (Revision, error)
	// Update replaces the object that was read at a revision. It returns ErrConflict if the
	// object has changed since or is gone. The object keeps its session.
	Update(ctx context.Context, object T, at Revision) (Revision, error)
	// Delete removes the object that was read at a revision. If the object has changed since, Delete
	// returns ErrConflict. With the zero revision, Delete removes the object in any version. Delete
	// accepts that the object does not exist.
	Delete(ctx context.Context, key string, at Revision) error
	// Watch delivers each change after a revision, in order, until ctx ends or the caller leaves the
	// loop. With the zero revision, Watch begins before all changes. A Watch from the revision of an
	// event misses no change, but may deliver a deletion twice. If the engine cannot be reached for
	// a while, Watch continues afterwards. An error, such as ErrCompacted or ErrUnreadable, is
	// always its last item. The caller then lists again and watches from there.
	Watch(ctx context.Context, after Revision) iter.Seq2[Event[T], error]
}

// At returns the revision of the n-th change, for an engine that counts its changes.
func At(n int64) Revision { return Revision(strconv.FormatInt(n, 10)) }

// InHistory returns the revision for a List: the number of the newest change and the name of
// the history.
func InHistory(n int64, history string) Revision { return At(n) + Revision("@"+history) }

// Split reverses At, whose revisions have no history, and InHistory. The zero revision is
// before all changes.
func (r Revision) Split() (n int64, history string, err error) {
	text, history, _ := strings.Cut(string(r), "@")
	if r == "" {
		return 0, "", nil
	}
	n, err = strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, history, fmt.Errorf("%q is not a revision of this store", r)
	}
	return n, history, nil
}

// Follows reports whether r comes from the same history as earlier and is not older. Both are
// revisions of a List. If r does not follow, objects that are missing at r need not have been
// deleted: the store may have lost its data, been restored from a backup, or be another one. If r follows, the store
// may still have gone back, because an operator who restores an etcd may raise its revision. The revisions of
// objects show that, because no restore changes them. Every revision follows the zero revision.
func (r Revision) Follows(earlier Revision) bool {
	now, history, _ := r.Split()
	was, of, _ := earlier.Split()
	return earlier == "" || r != "" && history == of && now >= was
}

// Before reports whether r is the revision of an earlier change than o. Both are revisions of objects.
func (r Revision) Before(o Revision) bool {
	n, _, _ := r.Split()
	m, _, _ := o.Split()
	return n < m
}

// With returns the later of two revisions in the same history: r, which a List returned, or event.
func (r Revision) With(event Revision) Revision {
	now, history, _ := r.Split()
	next, _, _ := event.Split()
	if next <= now {
		return r
	}
	return InHistory(next, history)
}
