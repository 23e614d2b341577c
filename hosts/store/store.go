// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"iter"
	"time"
)

// The errors of calls, beside those of an engine itself (it is unreachable, or refuses the
// login). After an engine's error the change may have been made or not: read again, or
// retry.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	// ErrConflict reports that the object has changed since it was read: read it again.
	ErrConflict = errors.New("changed meanwhile")
	// ErrCompacted reports a Watch from a revision that the engine no longer has: list
	// again.
	ErrCompacted = errors.New("revision is too old to watch from")
	// ErrUnreadable reports an object that is damaged, or that a newer Patchbay wrote. The
	// error names the reason. Delete without a revision removes the object.
	ErrUnreadable = errors.New("unreadable")
	// ErrName reports a name that no engine accepts: see Table.
	ErrName = errors.New("bad name")
	// ErrLeaseOver reports the use of a lease that has ended.
	ErrLeaseOver = errors.New("the lease is over")
	// ErrClosed reports the use of a store after Close.
	ErrClosed = errors.New("the store is closed")
)

// Unreadable is the error of one object that List leaves out. It wraps ErrUnreadable.
type Unreadable struct {
	Key string
	Err error
}

func (u *Unreadable) Error() string { return u.Err.Error() }
func (u *Unreadable) Unwrap() error { return u.Err }

// UnreadableKeys returns the keys of all objects that a List left out, from its error.
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

// Revision is a point in the history of one Table, or of one object in it. Its form is the
// engine's own: a caller can only hand it back. The zero value is no revision.
type Revision string

// Store is an engine with the four tables. Its methods are safe for concurrent use.
type Store interface {
	Networks() Table[Network]
	Nodes() Table[Node]
	Blocks() Table[Block]
	Endpoints() Table[Endpoint]

	// Lease begins a lease. The store renews it until ctx ends, End is called, the store is
	// closed, or the engine reports its end after it was unreachable for longer than ttl.
	// The ttl is at least a second; engines round it up to whole seconds.
	Lease(ctx context.Context, ttl time.Duration) (Lease, error)
	// Close ends every Watch with ErrClosed. It stops the renewal of leases: their objects
	// remain until they expire, so that a restart is no absence.
	Close() error
}

// Lease is the presence of one host. Objects that were created with it go when it ends.
type Lease interface {
	// Lost is closed when the lease is no longer renewed. Its objects are gone, or go
	// within a ttl (after ctx ended). While the engine is unreachable, that is unknown.
	Lost() <-chan struct{}
	// End removes the objects of the lease at once. A second call is no error.
	End(ctx context.Context) error
}

// Object is an entry of a table, under its key.
type Object interface{ Key() string }

// Item is an object with the revision of its last change.
type Item[T Object] struct {
	Object   T
	Revision Revision
}

// Event is one change. Of a deleted object only the fields of Key are certain.
type Event[T Object] struct {
	Item[T]
	Gone bool
}

// Table holds all objects of one kind. The names in a key are ASCII letters, digits and
// "_.-:", and begin with a letter, a digit, "_" or ":"; a key has 200 bytes at most. With
// any other name a call fails with ErrName and changes nothing.
type Table[T Object] interface {
	// Get returns one object, or ErrNotFound.
	Get(ctx context.Context, key string) (Item[T], error)
	// List returns all objects whose key begins with prefix, by key, and the revision to
	// watch from. It leaves out objects that cannot be read; the error then names them and
	// is ErrUnreadable, and the returned objects are valid.
	List(ctx context.Context, prefix string) ([]Item[T], Revision, error)
	// Create adds an object, or fails with ErrExists. With a lease, which may be nil, the
	// object goes when the lease ends.
	Create(ctx context.Context, object T, lease Lease) (Revision, error)
	// Update replaces the object that was read at revision, or fails with ErrConflict (also
	// when the object is gone). The object keeps its lease.
	Update(ctx context.Context, object T, at Revision) (Revision, error)
	// Delete removes the object as it was at revision, or fails with ErrConflict; the zero
	// revision matches any. An object that does not exist is not an error.
	Delete(ctx context.Context, key string, at Revision) error
	// Watch delivers each change after a revision, in order, until ctx or the loop ends;
	// the zero revision is before all changes. A Watch from the revision of an event misses
	// no change, but may deliver a deletion twice. Watch continues after an engine was
	// unreachable for a while. It yields an error, such as ErrCompacted or ErrUnreadable,
	// only as its last item: list again, and watch from there.
	Watch(ctx context.Context, after Revision) iter.Seq2[Event[T], error]
}
