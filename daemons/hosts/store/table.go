// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Row is an object as an engine stores it.
type Row struct {
	Key      string
	Data     []byte
	Revision Revision
}

// Change is an event as an engine delivers it. If Deleted is set, the row needs no data.
type Change struct {
	Row
	Deleted bool
}

// Rows is a table as an engine implements it. Its methods work like Table's. Their errors need not
// name the table and the key.
type Rows interface {
	Get(ctx context.Context, key string) (Row, error)
	List(ctx context.Context, prefix string) ([]Row, Revision, error)
	Create(ctx context.Context, key string, data []byte, session Session) (Revision, error)
	Update(ctx context.Context, key string, data []byte, at Revision) (Revision, error)
	Delete(ctx context.Context, key string, at Revision) error
	Watch(ctx context.Context, after Revision) iter.Seq2[Change, error]
}

// Tables implements the tables of a Store on an engine's rows. An engine embeds it.
type Tables struct {
	// Rows returns the rows of the table with this name.
	Rows func(table string) Rows
}

// Networks implements Store.
func (t Tables) Networks() Table[Network] { return of(t, networks()) }

// Nodes implements Store.
func (t Tables) Nodes() Table[Node] { return of(t, nodes()) }

// Blocks implements Store.
func (t Tables) Blocks() Table[Block] { return of(t, blocks()) }

// Entries implements Store.
func (t Tables) Entries() Table[Entry] { return of(t, endpoints()) }

func of[T Object](t Tables, k kind[T]) Table[T] { return table[T]{k, t.Rows(k.table)} }

type table[T Object] struct {
	kind kind[T]
	rows Rows
}

func (t table[T]) Get(ctx context.Context, key string) (item Item[T], err error) {
	defer t.wrap(&err, "get", key)
	if _, err := t.kind.names(key); err != nil {
		return item, err
	}
	row, err := t.rows.Get(ctx, key)
	if err != nil {
		return item, err
	}
	return t.item(row)
}

func (t table[T]) item(row Row) (Item[T], error) {
	object, err := t.kind.decode(row.Key, row.Data)
	if err != nil {
		return Item[T]{}, err
	}
	return Item[T]{Object: object, Revision: row.Revision}, nil
}

func (t table[T]) List(ctx context.Context, prefix string) ([]Item[T], Revision, error) {
	rows, revision, err := t.rows.List(ctx, prefix)
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", t.kind.table, err)
	}
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
	items := make([]Item[T], 0, len(rows))
	var unreadable []error
	for _, row := range rows {
		item, err := t.item(row)
		if err != nil {
			unreadable = append(unreadable, &Unreadable{Key: row.Key, Err: fmt.Errorf("list %s %q: %w", t.kind.one, row.Key, err)})
			continue
		}
		items = append(items, item)
	}
	return items, revision, errors.Join(unreadable...)
}

func (t table[T]) Create(ctx context.Context, object T, session Session) (_ Revision, err error) {
	key := object.Key()
	defer t.wrap(&err, "create", key)
	data, err := t.data(key, object)
	if err != nil {
		return "", err
	}
	return t.rows.Create(ctx, key, data, session)
}

func (t table[T]) Update(ctx context.Context, object T, at Revision) (_ Revision, err error) {
	key := object.Key()
	defer t.wrap(&err, "update", key)
	data, err := t.data(key, object)
	if err != nil {
		return "", err
	}
	return t.rows.Update(ctx, key, data, at)
}

// data encodes an object. If decode would refuse the object, data refuses it.
func (t table[T]) data(key string, object T) ([]byte, error) {
	if _, err := t.kind.deleted(key); err != nil {
		return nil, err
	}
	return encode(object)
}

func (t table[T]) Delete(ctx context.Context, key string, at Revision) (err error) {
	defer t.wrap(&err, "delete", key)
	if _, err := t.kind.names(key); err != nil {
		return err
	}
	return t.rows.Delete(ctx, key, at)
}

func (t table[T]) Watch(ctx context.Context, after Revision) iter.Seq2[Event[T], error] {
	return func(yield func(Event[T], error) bool) {
		for change, err := range t.rows.Watch(ctx, after) {
			event := Event[T]{}
			if err == nil {
				event, err = t.event(change)
			}
			t.wrap(&err, "watch", change.Key)
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

func (t table[T]) event(change Change) (event Event[T], err error) {
	if change.Deleted {
		event.Object, err = t.kind.deleted(change.Key)
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
	} else {
		event.Object, err = t.kind.decode(change.Key, change.Data)
	}
	event.Revision, event.Deleted = change.Revision, change.Deleted
	return event, err
}

func (t table[T]) wrap(err *error, verb, key string) {
	if *err != nil {
		*err = fmt.Errorf("%s %s %q: %w", verb, t.kind.one, key, *err)
	}
}
