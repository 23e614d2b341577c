// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package losses notes which kinds of the API's objects an agent cannot follow, since when, and why.
package losses

import (
	"errors"
	"fmt"
	"slices"
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

// Table has the kinds that an agent follows, by their number. Its owner must lock it.
type Table struct {
	listed []bool
	losses []Loss // with a time if the kind is not followed
}

// New returns the table of some kinds, numbered from 0. Each counts as lost.
func New(kinds ...fmt.Stringer) *Table {
	t := &Table{listed: make([]bool, len(kinds))}
	for _, k := range kinds {
		t.losses = append(t.losses, Loss{k, time.Now(), ErrUnlisted})
	}
	return t
}

// List notes that a kind was listed, and reports whether it is the first time.
func (t *Table) List(kind int) (first bool) {
	first = !t.listed[kind]
	t.listed[kind], t.losses[kind] = true, Loss{Kind: t.losses[kind].Kind}
	return first
}

// Report stores the result of a request for the objects of a kind. err is nil if they are followed
// again, so that no event was lost.
func (t *Table) Report(kind int, err error) {
	switch l := &t.losses[kind]; {
	case err == nil && t.listed[kind]:
		*l = Loss{Kind: l.Kind}
	case err != nil && l.Since.IsZero():
		*l = Loss{l.Kind, time.Now(), err}
	case err != nil:
		l.Err = err
	}
}

// All returns the kinds that are not followed.
func (t *Table) All() (list []Loss) {
	for _, l := range t.losses {
		if !l.Since.IsZero() {
			list = append(list, l)
		}
	}
	return list
}

// Listed reports whether a kind was listed.
func (t *Table) Listed(kind int) bool { return t.listed[kind] }

// Complete reports whether each kind was listed.
func (t *Table) Complete() bool { return !slices.Contains(t.listed, false) }
