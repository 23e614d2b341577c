// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
)

// Release releases every address of an owner, in any range. To hold none is no error. It
// goes on after an error and returns what it released.
func Release(tx Tx, o Owner) ([]Reservation, error) {
	held, err := tx.Held(o)
	return releaseAll(tx, held, err)
}

func releaseAll(tx Tx, all []Reservation, err error) ([]Reservation, error) {
	var done []Reservation
	for _, r := range all {
		if e := tx.Release(r); e != nil {
			err = errors.Join(err, fmt.Errorf("release %s: %w", r.Addr, e))
			continue
		}
		done = append(done, r)
	}
	return done, err
}

// Collect releases every reservation for which keep returns false, and sweeps (GC). It
// keeps a file that names no owner, since that is no reservation of a container: operators
// block addresses that way. keep gets an empty IfName for files without one.
func Collect(tx Tx, keep func(Owner) bool) ([]Reservation, error) {
	if err := tx.Sweep(); err != nil {
		return nil, err
	}
	all, err := tx.List(false)
	var dead []Reservation
	for _, r := range all {
		if r.Owner.ID != "" && !keep(r.Owner) {
			dead = append(dead, r)
		}
	}
	return releaseAll(tx, dead, err)
}

// Status reports whether an ADD would get an address from every set, including addresses that
// it would reclaim. It costs as much as the ADD's search and takes nothing. The error wraps
// ErrExhausted.
func Status(tx Tx, sets []RangeSet, gone func(Reservation) bool) error {
	a := &allocation{tx: tx, Request: &Request{Sets: sets, Gone: gone, Dry: true}}
	for i, set := range sets {
		if err := a.status(i, set); err != nil {
			return fmt.Errorf("range %d: %w", i, err)
		}
	}
	return nil
}

func (a *allocation) status(i int, set RangeSet) error {
	_, err := a.next(i, set)
	return err
}
