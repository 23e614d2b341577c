// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package copies takes objects of the Kubernetes API, as JSON, into what an agent keeps of them. It says when a change counts, and
// which kinds are followed. What is kept, and what counts, its owners decide (daemons/node/policies, services and lan).
package copies

import (
	"fmt"
	"iter"
	"sync"

	"github.com/patchbay-net/patchbay/daemons/internal/losses"
)

// Apply stores what was read, and reports whether anything changes that counts. Its caller has the lock of what is kept.
type Apply func() (changed bool)

// Reader reads the objects of some kinds.
type Reader[K any] struct {
	// One reads an object as the API serves it. It returns an error only if it cannot read which object it is.
	One func(k K, object []byte) (Apply, error)
	// All reads a list of all objects of a kind. If it cannot read the list or which object one is, it returns an error, and nothing is to be stored.
	All func(k K, list iter.Seq2[[]byte, error]) (Apply, error)
	// Remove removes an object, and reports what an Apply does. Its caller has the lock.
	Remove func(k K, namespace, name string) (changed bool)
}

// Copies are an agent's copies of the API's objects of some kinds. The calls of one kind must be in the order of the API's events.
// Calls of different kinds may run at the same time.
type Copies[K losses.Kind] struct {
	*losses.Table[K]
	read Reader[K]
	lock sync.Locker
	wake func()
}

// New returns copies of the kinds 0 to number-1. lock is that of what is kept. wake is called without it after each change that counts, and must not wait.
func New[K losses.Kind](number K, read Reader[K], lock sync.Locker, wake func()) *Copies[K] {
	return &Copies[K]{losses.New(number), read, lock, wake}
}

// Set stores an object that was added or changed, as the API serves it in JSON. If a part of it cannot be read, the owner of the copies
// knows. Set returns an error only if it cannot read which object it is; then something is not known, so the caller must list the kind again.
func (c *Copies[K]) Set(k K, object []byte) error {
	apply, err := c.read.One(k, object)
	if err != nil {
		return fmt.Errorf("read one of the %s: %w", k, err)
	}
	c.Change(apply)
	return nil
}

// Delete removes an object that was deleted. The namespace of an object that is in none is "".
func (c *Copies[K]) Delete(k K, namespace, name string) {
	c.Change(func() bool { return c.read.Remove(k, namespace, name) })
}

// Replace stores a list of all objects of a kind, and removes all others. Nobody sees a part of the list. If the list or the name of an
// object cannot be read, the former objects stay, and Replace returns an error. If the API server does not have the kind, its list is empty.
func (c *Copies[K]) Replace(k K, list iter.Seq2[[]byte, error]) error {
	apply, err := c.read.All(k, list)
	if err != nil {
		return fmt.Errorf("replace the %s: %w", k, err)
	}
	c.Change(func() bool {
		first := c.NoteList(k)
		return apply() || first
	})
	return nil
}

// Change changes what is kept.
func (c *Copies[K]) Change(apply Apply) {
	c.lock.Lock()
	changed := apply()
	c.lock.Unlock()
	if changed {
		c.Wake()
	}
}

// Wake does what follows a change, although no object has changed.
func (c *Copies[K]) Wake() { c.wake() }
