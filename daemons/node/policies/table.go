// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/internal/copies"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// key names an object.
type key struct{ namespace, name string }

// clusterWide is the namespace in the key of an object that is in no namespace. It is no valid name.
const clusterWide = "-"

// String returns "shop/web", or "n1" for an object that is in no namespace.
func (k key) String() string {
	if k.namespace == clusterWide {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// objects is a table of any kind. A change counts if policies can see it. The caller of remove and problems has
// the lock of all tables.
type objects interface {
	read(object []byte) (copies.Apply, error)
	list(all iter.Seq2[[]byte, error]) (copies.Apply, error)
	remove(k key) (changed bool)
	giveBack()
	problems() []policy.Problem
	empty() bool
}

// table has the objects of one kind.
type table[T any] struct {
	one   string // "pod"
	key   func(*T) key
	equal func(a, b *T) bool

	// parse reads an object. If keep is not set, no program needs the object. An error says what
	// cannot be read; the value has what can be read.
	parse func(object []byte) (value T, keep bool, err error)

	// hold makes a value share memory with others, until release. Both may be nil.
	hold, release func(*T)

	values []T
	lent   bool           // a state uses values, so a change needs a copy
	at     map[key]int    // in values
	wrong  map[key]string // what cannot be read
}

// lend returns the values for a state. They do not change until giveBack: a copy of 20,000 pods for each
// state would be a fourth of the memory that a program takes.
func (t *table[T]) lend() []T {
	t.lent = true
	return slices.Clip(t.values)
}

func (t *table[T]) giveBack() { t.lent = false }

func (t *table[T]) empty() bool { return len(t.values)+len(t.wrong) == 0 }

// own makes the values this table's alone, before a change.
func (t *table[T]) own() {
	if t.lent {
		t.values, t.lent = slices.Clone(t.values), false
	}
}

// item is an object that was read.
type item[T any] struct {
	key   key
	value T
	keep  bool
	wrong string
}

// errUnnamed means that an object may be any of those that are known.
var errUnnamed = errors.New("it has no name or no namespace")

func (t *table[T]) read(object []byte) (copies.Apply, error) {
	i, err := t.item(object)
	if err != nil {
		return nil, err
	}
	return func() bool { return t.put(i) }, nil
}

// item reads an object. It returns an error only if the name cannot be read.
func (t *table[T]) item(object []byte) (i item[T], err error) {
	if i.value, i.keep, err = t.parse(object); err != nil {
		i.wrong = err.Error()
	}
	if i.key = t.key(&i.value); i.key.namespace == "" || i.key.name == "" {
		return i, fmt.Errorf("%w; list the objects again", cmp.Or(err, errUnnamed))
	}
	if i.keep && t.hold != nil {
		t.hold(&i.value)
		i.key = t.key(&i.value) // of the shared memory
	}
	return i, nil
}

// list reads all objects. If an object has no name, the whole list is ignored: the object could be any
// of those that the list seems to lack. list keeps nothing of an unchanged object, so a list of all
// objects takes little memory. list reads the table without the lock: each table belongs to one kind,
// and Copies wants the calls of one kind one after the other.
func (t *table[T]) list(all iter.Seq2[[]byte, error]) (copies.Apply, error) {
	l := listing[T]{seen: make([]bool, len(t.values)), late: make(map[key]bool), wrong: make(map[key]string)}
	err := copies.Each(all, func(object []byte) error {
		i, err := t.item(object)
		if err == nil {
			t.add(&l, i)
		}
		return err
	})
	if err != nil {
		for n := range l.items {
			t.drop(&l.items[n])
		}
		return nil, err
	}
	return func() bool { return t.replace(&l) }, nil
}

// listing is what a list changes.
type listing[T any] struct {
	seen  []bool // of the values that were known before
	items []item[T]
	late  map[key]bool // the keys of items; items come after the values that were known before
	wrong map[key]string
}

// add adds an object to a list. If it is there twice, the last one counts.
func (t *table[T]) add(l *listing[T], i item[T]) {
	if delete(l.wrong, i.key); i.wrong != "" {
		l.wrong[i.key] = i.wrong
	}
	at, known := t.at[i.key]
	if known {
		l.seen[at] = true
	}
	if !l.late[i.key] && (known && i.keep && t.equal(&t.values[at], &i.value) || !known && !i.keep) {
		t.drop(&i)
		return
	}
	l.items, l.late[i.key] = append(l.items, i), true
}

// drop releases what was read and is not stored.
func (t *table[T]) drop(i *item[T]) {
	if i.keep {
		t.free(&i.value)
	}
}

func (t *table[T]) free(value *T) {
	if t.release != nil {
		t.release(value)
	}
}

// replace makes the table equal to a list.
func (t *table[T]) replace(l *listing[T]) (changed bool) {
	var gone []key
	for at, seen := range l.seen {
		if !seen {
			gone = append(gone, t.key(&t.values[at]))
		}
	}
	for _, k := range gone {
		changed = t.remove(k) || changed
	}
	for _, i := range l.items {
		changed = t.put(i) || changed
	}
	t.wrong = l.wrong
	return changed
}

// put stores an object, or removes it if no program needs it any more.
func (t *table[T]) put(i item[T]) (changed bool) {
	at, known := t.at[i.key]
	switch {
	case !i.keep:
		changed = t.remove(i.key)
	case !known:
		changed = t.insert(i)
	case t.equal(&t.values[at], &i.value):
		t.drop(&i)
	default:
		t.own()
		t.free(&t.values[at])
		t.values[at], changed = i.value, true
		t.at[i.key] = at // with the new key, so that the old object can be freed
	}
	if delete(t.wrong, i.key); i.wrong != "" {
		t.note(i.key, i.wrong)
	}
	return changed
}

func (t *table[T]) insert(i item[T]) bool {
	t.own()
	if t.at == nil {
		t.at = make(map[key]int)
	}
	t.at[i.key] = len(t.values)
	t.values = append(t.values, i.value)
	return true
}

func (t *table[T]) note(k key, wrong string) {
	if t.wrong == nil {
		t.wrong = make(map[key]string)
	}
	t.wrong[k] = wrong
}

// remove removes an object. The last one moves to its place.
func (t *table[T]) remove(k key) (changed bool) {
	delete(t.wrong, k)
	at, known := t.at[k]
	if !known {
		return false
	}
	t.own()
	t.free(&t.values[at])
	delete(t.at, k)
	last := len(t.values) - 1
	if at != last {
		t.values[at] = t.values[last]
		t.at[t.key(&t.values[at])] = at
	}
	clear(t.values[last:])
	t.values = t.values[:last]
	return true
}

func (t *table[T]) problems() (list []policy.Problem) {
	for k, text := range t.wrong {
		list = append(list, policy.Problem{Object: t.one + " " + k.String(), Text: text})
	}
	return list
}
