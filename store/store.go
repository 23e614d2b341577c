// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"iter"
	"time"
)

// What a call fails with, beside what the engine says of itself (it is away, it
// refuses us). After such an error a change may have been made or not: read, or
// try again.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	// ErrConflict is a change of something that changed meanwhile: read it again.
	ErrConflict = errors.New("changed meanwhile")
	// ErrCompacted is a Watch from a revision that the engine no longer has: list again.
	ErrCompacted = errors.New("revision is too old to watch from")
	// ErrUnreadable is an object that is there, and damaged or written by a newer
	// Patchbay. The error says which. Delete without a revision removes it.
	ErrUnreadable = errors.New("unreadable")
	// ErrName is an object with a name that no engine takes: Table says which it takes.
	ErrName = errors.New("bad name")
	// ErrLeaseOver is the use of a lease that has ended.
	ErrLeaseOver = errors.New("the lease is over")
	// ErrClosed is the use of a store after Close.
	ErrClosed = errors.New("the store is closed")
)

// Unreadable is the error of one object that List leaves out, and ErrUnreadable.
type Unreadable struct {
	Key string
	Err error
}

func (u *Unreadable) Error() string { return u.Err.Error() }
func (u *Unreadable) Unwrap() error { return u.Err }

// UnreadableKeys are the keys of all that a List left out, by its error.
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

// Revision is a point in the history of one Table, or of one object in it. It is
// the engine's own word, good for nothing but to hand it back. The zero value is
// no revision.
type Revision string

// Store is an engine with our four tables. Its methods may be called by many
// goroutines.
type Store interface {
	Networks() Table[Network]
	Nodes() Table[Node]
	Blocks() Table[Block]
	Endpoints() Table[Endpoint]

	// Lease begins a lease that is kept alive until ctx ends, it is ended, the store
	// is closed, or the engine says that it is over: it could not be reached for
	// longer than ttl. The ttl is a second or more; engines round it up to whole seconds.
	Lease(ctx context.Context, ttl time.Duration) (Lease, error)
	// Close ends every Watch with ErrClosed. Leases are no longer kept: what hangs
	// on them goes when their time is over, so that a restart is no absence.
	Close() error
}

// Lease is the presence of one host. What was created with it goes when it ends.
type Lease interface {
	// Lost is closed when nobody keeps the lease any longer. What hung on it is gone,
	// or goes within a ttl (after ctx ended). While the engine is away nobody knows.
	Lost() <-chan struct{}
	// End removes what was created with it, now. Once more is no error.
	End(ctx context.Context) error
}

// Object is what a table has: its key names it there.
type Object interface{ Key() string }

// Item is an object with the revision of its last change.
type Item[T Object] struct {
	Object   T
	Revision Revision
}

// Event is one change. Of an object that is gone only what Key needs is certain.
type Event[T Object] struct {
	Item[T]
	Gone bool
}

// Table is all objects of one kind. The names in a key are ASCII letters, digits
// and "_.-:", and begin with a letter, a digit, "_" or ":"; a key has 200 bytes at
// most. With any other name, a call fails with ErrName and touches nothing.
type Table[T Object] interface {
	// Get returns one object, or ErrNotFound.
	Get(ctx context.Context, key string) (Item[T], error)
	// List returns all objects whose key begins with prefix, by key, and the revision
	// to watch from. An object that cannot be read is left out and named by the
	// error, which then is ErrUnreadable: what is returned beside it is good, and
	// no more than that one object is in doubt.
	List(ctx context.Context, prefix string) ([]Item[T], Revision, error)
	// Create adds an object, or fails with ErrExists. With a lease, which may be
	// nil, it goes when the lease ends.
	Create(ctx context.Context, object T, lease Lease) (Revision, error)
	// Update replaces the object that was read at revision, or fails with
	// ErrConflict (also when it is gone). Its lease stays what it is.
	Update(ctx context.Context, object T, at Revision) (Revision, error)
	// Delete removes the object as it was at revision, or fails with ErrConflict;
	// the zero revision is any. What is not there is not an error.
	Delete(ctx context.Context, key string, at Revision) error
	// Watch tells of each change after a revision, in order, until ctx ends or the
	// loop does; the zero revision is before all changes. Whoever goes on from the
	// revision of an event misses none, but may be told twice of what is gone. It
	// survives an engine that is away for a while; an error, such as ErrCompacted or
	// ErrUnreadable, is the last thing it yields: list again, and watch from there.
	Watch(ctx context.Context, after Revision) iter.Seq2[Event[T], error]
}
