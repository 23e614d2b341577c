// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package doubt answers for an agent that copies objects from a source, such as an etcd or the Kubernetes API: was
// an object deleted, or is it only missing? A source that was restored from a backup lacks objects that are in use.
// A route to a deleted object leads nowhere. Without the route to an object in use, its containers are cut off. So
// an object counts as deleted only if the source says so: by an event, or by a reading that follows the last one.
// What another reading lacks is missing, and stays.
package doubt

import (
	"maps"
	"reflect"
	"time"

	"github.com/patchbay-net/patchbay/internal/order"
)

// Table holds the objects of one kind, by key. Its owner locks it. The zero value is empty.
type Table[T any] struct {
	// Keep is how long a missing object stays, and how long a deleted one is remembered. If it is 0, a missing
	// object stays until Drop, and a deleted one is not remembered.
	Keep time.Duration
	// Newer reports whether a missing object is newer than the one that the source has under its key. Then it stays
	// missing, and All has it instead of the source's. If Newer is nil, the source's object always counts.
	Newer func(missing, there T) bool
	Now   func() time.Time // nil: time.Now

	present map[string]T // what the source has
	missing map[string]Past[T]
	deleted map[string]Past[T]
}

// Past is an object that the source has lost or deleted, and since when.
type Past[T any] struct {
	Object T
	At     time.Time
}

func (t *Table[T]) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
}

// Restore takes over the objects that an earlier run saved. A time in the future becomes now, because the clock was
// set back.
func (t *Table[T]) Restore(present map[string]T, missing, deleted map[string]Past[T]) {
	t.present, t.missing, t.deleted = maps.Clone(present), t.past(missing), t.past(deleted)
	for key := range t.missing {
		delete(t.present, key)
	}
}

func (t *Table[T]) past(saved map[string]Past[T]) map[string]Past[T] {
	out, now := map[string]Past[T]{}, t.now()
	for key, p := range saved {
		if p.At.After(now) {
			p.At = now
		}
		out[key] = p
	}
	return out
}

// Put stores an object that an event reports, and returns whether that changes anything.
func (t *Table[T]) Put(key string, object T) (changed bool) {
	old, known := t.present[key]
	_, missed := t.missing[key]
	if t.present == nil {
		t.present = map[string]T{}
	}
	t.present[key] = object
	delete(t.missing, key)
	delete(t.deleted, key)
	return !known || missed || !reflect.DeepEqual(old, object)
}

// Delete removes an object whose deletion an event reports, also if it was missing.
func (t *Table[T]) Delete(key string) (changed bool) {
	object, known := t.Get(key)
	delete(t.present, key)
	delete(t.missing, key)
	if known && t.Keep > 0 {
		set(&t.deleted, key, Past[T]{object, t.now()})
	}
	return known
}

// Replace takes over a reading of all objects. If the reading follows the last one, the objects that it lacks were
// deleted, and missing objects stay missing. If it does not follow, or this is not known, the objects that it lacks
// become missing.
func (t *Table[T]) Replace(reading map[string]T, follows bool) (changed bool) {
	was, before := t.present, t.missing
	t.present, t.missing = maps.Clone(reading), nil
	for key, p := range before {
		t.lose(key, p)
	}
	for key, object := range was {
		if _, missing := before[key]; !missing && !follows {
			t.lose(key, Past[T]{object, t.now()})
		}
	}
	for key := range t.present {
		delete(t.deleted, key)
	}
	return !same(was, t.present) || !same(before, t.missing)
}

func same[V any](a, b map[string]V) bool {
	return maps.EqualFunc(a, b, func(a, b V) bool { return reflect.DeepEqual(a, b) })
}

// lose notes that an object is missing, unless the source has it or a newer one.
func (t *Table[T]) lose(key string, p Past[T]) {
	if there, has := t.present[key]; !has || t.Newer != nil && t.Newer(p.Object, there) {
		set(&t.missing, key, p)
	}
}

func set[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = value
}

// Drop removes the missing objects that have become needless, for example because the source has another one in
// their place.
func (t *Table[T]) Drop(needless func(missing T) bool) {
	var keys []string // all are judged first: the answer may depend on what else is missing
	for key, p := range t.missing {
		if needless(p.Object) {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		delete(t.missing, key)
	}
}

// Expire removes the objects that have been missing for Keep, and forgets those that were deleted that long ago.
func (t *Table[T]) Expire() {
	if t.Keep == 0 {
		return
	}
	old := func(_ string, p Past[T]) bool { return t.now().Sub(p.At) >= t.Keep }
	maps.DeleteFunc(t.missing, old)
	maps.DeleteFunc(t.deleted, old)
}

// Get returns an object, also if it is missing.
func (t *Table[T]) Get(key string) (object T, known bool) {
	if p, missing := t.missing[key]; missing {
		return p.Object, true
	}
	object, known = t.present[key]
	return object, known
}

// GetPresent returns what the source has under a key.
func (t *Table[T]) GetPresent(key string) (object T, has bool) {
	object, has = t.present[key]
	return object, has
}

// Recall returns a deleted object that is still remembered.
func (t *Table[T]) Recall(key string) (object T, known bool) {
	p, known := t.deleted[key]
	return p.Object, known
}

// AllByKey returns all objects, the missing ones too.
func (t *Table[T]) AllByKey() map[string]T {
	out := make(map[string]T, len(t.present)+len(t.missing))
	maps.Copy(out, t.present)
	for key, p := range t.missing {
		out[key] = p.Object
	}
	return out
}

// All returns all objects in the order of their keys, the missing ones too.
func (t *Table[T]) All() []T {
	if len(t.missing) == 0 {
		return t.Present()
	}
	return order.Values(t.AllByKey())
}

// Present returns what the source has, in the order of the keys.
func (t *Table[T]) Present() []T { return order.Values(t.present) }

// Missing returns the missing objects in the order of their keys.
func (t *Table[T]) Missing() []Past[T] { return order.Values(t.missing) }

// Deleted returns the deleted objects that are still remembered, in the order of their keys.
func (t *Table[T]) Deleted() []Past[T] { return order.Values(t.deleted) }

// Objects returns the objects without their times, and nil if there are none.
func Objects[T any](list []Past[T]) (out []T) {
	for _, p := range list {
		out = append(out, p.Object)
	}
	return out
}
