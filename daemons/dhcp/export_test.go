// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
)

// These serve the tests in package dhcp_test. The tests cannot be in this package, because they
// use daemons/test/dhcptest, which imports it.
const AwayTime = awayTime

var (
	ErrUnknown     = errUnknown
	ErrNoMoreTries = errNoMoreTries
)

// Adopted waits until every adoption has ended.
func (k *Keeper) Adopted() { k.adopting.Wait() }

// LateRelease returns the second half of a Release. The first half has found the lease.
func (k *Keeper) LateRelease(a *dhcprpc.Args) func(context.Context) error {
	_, e, err := k.find(a)
	if err != nil || e == nil {
		panic("no lease to release")
	}
	return e.forget
}

// SetHostPrefix changes the option.
func (k *Keeper) SetHostPrefix(p string) { k.opts.HostPrefix = p }

// Sleepers returns the number of goroutines of all entries. While an entry still requests its
// lease, ok is false.
func (k *Keeper) Sleepers() (n int, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.entries {
		if !e.settled() {
			return 0, false
		}
		e.mu.Lock()
		if e.rec.Away != 0 {
			n++
		} else {
			n += len(e.addrs) + 1
		}
		e.mu.Unlock()
	}
	return n, true
}
