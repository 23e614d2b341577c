// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package losses notes which kinds of the API's objects an agent cannot follow, since when, and why.
package losses

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Loss is a kind that the agent cannot follow: it uses what it knew at the time Since.
type Loss struct {
	Kind  fmt.Stringer
	Since time.Time
	Err   error // of the last try
}

// String returns "pods since 2026-11-23T08:00:00Z: connection refused".
func (l Loss) String() string {
	return fmt.Sprintf("%s since %s: %v", l.Kind, l.Since.UTC().Format(time.RFC3339), l.Err)
}

// ErrUnlisted is the first Loss of each kind.
var ErrUnlisted = errors.New("they have not been listed yet")

// Kind numbers kinds of objects from 0, and has their names, such as "pods".
type Kind interface {
	~int
	fmt.Stringer
}

// Table has the kinds that an agent follows. Its methods may be called at the same time.
type Table[K Kind] struct {
	mu       sync.Mutex
	listed   []bool
	losses   []Loss // with a time if the kind is not followed
	complete time.Time
}

// New returns the table of the kinds 0 to number-1. Each counts as lost.
func New[K Kind](number K) *Table[K] {
	t := &Table[K]{listed: make([]bool, number)}
	for k := range number {
		t.losses = append(t.losses, Loss{k, time.Now(), ErrUnlisted})
	}
	return t
}

// NoteList notes that a kind was listed, and reports whether it is the first time.
func (t *Table[K]) NoteList(k K) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first = !t.listed[k]
	t.listed[k], t.losses[k] = true, Loss{Kind: k}
	if t.complete.IsZero() && !slices.Contains(t.listed, false) {
		t.complete = time.Now()
	}
	return first
}

// Report stores the result of a request for the objects of a kind. err is nil if they are followed
// again, so that no event was lost.
func (t *Table[K]) Report(k K, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch l := &t.losses[k]; {
	case err == nil && t.listed[k]:
		*l = Loss{Kind: k}
	case err != nil && l.Since.IsZero():
		*l = Loss{k, time.Now(), err}
	case err != nil:
		l.Err = err
	}
}

// Losses returns the kinds that are not followed.
func (t *Table[K]) Losses() (list []Loss) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.losses {
		if !l.Since.IsZero() {
			list = append(list, l)
		}
	}
	return list
}

// Listed reports whether a kind was listed.
func (t *Table[K]) Listed(k K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.listed[k]
}

// Complete reports whether each kind was listed.
func (t *Table[K]) Complete() bool { return !t.CompleteSince().IsZero() }

// CompleteSince returns when the last kind was listed first. If one was not, it returns the zero time.
func (t *Table[K]) CompleteSince() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.complete
}
