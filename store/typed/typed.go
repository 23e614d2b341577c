// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package typed builds the tables of package store from rows of bytes, for engines that
// store bytes. It defines once what a row contains, which keys exist and what is refused;
// an engine gets only keys that are safe as paths.
package typed

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/store"
)

// Row is an object as an engine stores it.
type Row struct {
	Key      string
	Data     []byte
	Revision store.Revision
}

// Change is an event of an engine. A deleted row needs no data.
type Change struct {
	Row
	Gone bool
}

// Rows is a table of an engine. The methods are those of store.Table; their errors need not
// name the table and the key.
type Rows interface {
	Get(ctx context.Context, key string) (Row, error)
	List(ctx context.Context, prefix string) ([]Row, store.Revision, error)
	Create(ctx context.Context, key string, data []byte, lease store.Lease) (store.Revision, error)
	Update(ctx context.Context, key string, data []byte, at store.Revision) (store.Revision, error)
	Delete(ctx context.Context, key string, at store.Revision) error
	Watch(ctx context.Context, after store.Revision) iter.Seq2[Change, error]
}

// Tables are the tables of a store over an engine's rows; engines embed it.
type Tables struct {
	// Rows returns the rows of a table, by its name.
	Rows func(table string) Rows
}

// Networks implements store.Store.
func (t Tables) Networks() store.Table[store.Network] { return of(t, networks()) }

// Nodes implements store.Store.
func (t Tables) Nodes() store.Table[store.Node] { return of(t, nodes()) }

// Blocks implements store.Store.
func (t Tables) Blocks() store.Table[store.Block] { return of(t, blocks()) }

// Endpoints implements store.Store.
func (t Tables) Endpoints() store.Table[store.Endpoint] { return of(t, endpoints()) }

func of[T store.Object](t Tables, k kind[T]) store.Table[T] { return table[T]{k, t.Rows(k.table)} }

type table[T store.Object] struct {
	kind kind[T]
	rows Rows
}

func (t table[T]) Get(ctx context.Context, key string) (item store.Item[T], err error) {
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

func (t table[T]) item(row Row) (store.Item[T], error) {
	object, err := t.kind.decode(row.Key, row.Data)
	if err != nil {
		return store.Item[T]{}, err
	}
	return store.Item[T]{Object: object, Revision: row.Revision}, nil
}

func (t table[T]) List(ctx context.Context, prefix string) ([]store.Item[T], store.Revision, error) {
	rows, revision, err := t.rows.List(ctx, prefix)
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", t.kind.table, err)
	}
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
	items := make([]store.Item[T], 0, len(rows))
	var unreadable []error
	for _, row := range rows {
		item, err := t.item(row)
		if err != nil {
			unreadable = append(unreadable, &store.Unreadable{Key: row.Key, Err: fmt.Errorf("list %s %q: %w", t.kind.one, row.Key, err)})
			continue
		}
		items = append(items, item)
	}
	return items, revision, errors.Join(unreadable...)
}

func (t table[T]) Create(ctx context.Context, object T, lease store.Lease) (_ store.Revision, err error) {
	key := object.Key()
	defer t.wrap(&err, "create", key)
	data, err := t.data(key, object)
	if err != nil {
		return "", err
	}
	return t.rows.Create(ctx, key, data, lease)
}

func (t table[T]) Update(ctx context.Context, object T, at store.Revision) (_ store.Revision, err error) {
	key := object.Key()
	defer t.wrap(&err, "update", key)
	data, err := t.data(key, object)
	if err != nil {
		return "", err
	}
	return t.rows.Update(ctx, key, data, at)
}

// data refuses before a write what decode would refuse.
func (t table[T]) data(key string, object T) ([]byte, error) {
	if _, err := t.kind.gone(key); err != nil {
		return nil, err
	}
	return encode(object)
}

func (t table[T]) Delete(ctx context.Context, key string, at store.Revision) (err error) {
	defer t.wrap(&err, "delete", key)
	if _, err := t.kind.names(key); err != nil {
		return err
	}
	return t.rows.Delete(ctx, key, at)
}

func (t table[T]) Watch(ctx context.Context, after store.Revision) iter.Seq2[store.Event[T], error] {
	return func(yield func(store.Event[T], error) bool) {
		for change, err := range t.rows.Watch(ctx, after) {
			event := store.Event[T]{}
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

func (t table[T]) event(change Change) (event store.Event[T], err error) {
	if change.Gone {
		event.Object, err = t.kind.gone(change.Key)
		if err != nil {
			err = fmt.Errorf("%w: %w", store.ErrUnreadable, err)
		}
	} else {
		event.Object, err = t.kind.decode(change.Key, change.Data)
	}
	event.Revision, event.Gone = change.Revision, change.Gone
	return event, err
}

func (t table[T]) wrap(err *error, verb, key string) {
	if *err != nil {
		*err = fmt.Errorf("%s %s %q: %w", verb, t.kind.one, key, *err)
	}
}
