// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Owner is the attachment that holds an address within a network. IfName is empty for files
// of a host-local before 0.7, which hold the id alone.
type Owner struct{ ID, IfName string }

// Validate refuses an owner that a file could not represent: a line break separates the two
// fields.
func (o Owner) Validate() error {
	if o.ID == "" || o.IfName == "" {
		return errors.New("container id or interface name is empty")
	}
	bad := func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' }
	if strings.ContainsFunc(o.ID+o.IfName, bad) {
		return fmt.Errorf("container id %q or interface name %q has a forbidden character", o.ID, o.IfName)
	}
	return nil
}

// Reservation is one address and its owner.
type Reservation struct {
	Addr  netip.Addr
	Owner Owner

	// EarlierBoot means that it was made before the node last booted, so that
	// its namespace cannot exist any more.
	EarlierBoot bool

	// Since is the time of the reservation, as far as the store knows.
	Since time.Time
}

// Mode is what a transaction may do.
type Mode int

// The modes.
const (
	Write    Mode = iota // create what is missing (ADD)
	Existing             // work on what exists (DEL, CHECK, GC, STATUS)
	ReadOnly             // change nothing at all (explain)
)

// Store is the reservations of one network.
type Store interface {
	// Begin starts a transaction and keeps other processes out until Close. It waits for
	// them as long as ctx allows.
	Begin(ctx context.Context, m Mode) (Tx, error)
}

// Tx is one transaction. Each of its methods is atomic: a process that dies between two of
// them leaves a valid store.
type Tx interface {
	// Held returns the addresses of an owner, in any order.
	Held(o Owner) ([]Reservation, error)

	// Holder returns the owner of an address; ok is false when it has none.
	Holder(a netip.Addr) (r Reservation, ok bool, err error)

	// Free returns the first address from first to last, both included, that
	// is not known to be taken. It is a hint; Claim decides.
	Free(first, last netip.Addr) (a netip.Addr, ok bool, err error)

	// Claim takes an address, or returns false when another owner has it. Free does not
	// offer such an address again.
	Claim(o Owner, a netip.Addr) (bool, error)

	// Renew marks a reservation as made now, in this boot.
	Renew(r Reservation) error

	// Release frees an address if r.Owner still holds it.
	Release(r Reservation) error

	// Cursor returns the last address that was given out from a set, or the
	// zero address.
	Cursor(set int) netip.Addr

	// SetCursor stores the last address that was given out from a set.
	SetCursor(set int, a netip.Addr) error

	// List returns the reservations, all or only those of an earlier boot.
	List(earlierBoot bool) ([]Reservation, error)

	// Refresh drops hints that may be out of date and reports whether there were any. Callers
	// use it before they report a pool as full.
	Refresh() (bool, error)

	// Sweep removes what crashed processes left without an owner: empty and torn files.
	// Refresh includes it.
	Sweep() error

	// Close ends the transaction.
	Close()
}
