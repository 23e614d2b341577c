// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"errors"

	"github.com/patchbay-net/patchbay/internal/order"
)

// Part is what a step of a removal removes. Parts go in this order.
type Part int

const (
	// Rules are what chained plugins made: ports and rules lead to the address.
	Rules Part = iota
	// Through is an address that is released through the link, as a lease of DHCP is.
	Through
	// Link is the container's interface.
	Link
	// Address is an address that another attachment may get as soon as it is released.
	Address
)

// Step removes a part of an attachment.
type Step struct {
	Part Part
	Do   func() error
}

// ErrStays is returned by a step whose part stays although nothing has failed.
var ErrStays = errors.New("it stays")

// Remove runs all steps in the order of their parts, and goes on after an error. But an address goes only if all before
// it has gone: another attachment may get it, and no port, rule or link of this one must lead there.
func Remove(steps ...Step) (err error) {
	order.Stable(steps, func(a, b Step) int { return cmp.Compare(a.Part, b.Part) })
	leads := false
	for _, s := range steps {
		if leads && (s.Part == Through || s.Part == Address) {
			continue
		}
		failed := s.Do()
		leads = leads || failed != nil
		if !errors.Is(failed, ErrStays) {
			err = errors.Join(err, failed)
		}
	}
	return err
}
