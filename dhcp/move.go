// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// awayTime is how long an interface that is being moved may be nowhere.
const awayTime = 5 * time.Minute

// Move follows an interface that a program moves to another namespace or renames: to
// a.NetNS, with the name a.Path. Without a namespace it is about to be moved: for five
// minutes nothing is renewed, and a missing interface does not count as gone. The
// attachment is still the one of a.IfName.
func (k *Keeper) Move(ctx context.Context, a *dhcprpc.Args) error {
	network, err := dhcprpc.Network(a.Config)
	if err != nil {
		return err
	}
	k.mu.Lock()
	e := k.entries[owner.Of(network, a.ContainerID, a.IfName)]
	k.mu.Unlock()
	if e == nil {
		return errUnknown
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if e.failed() {
		return errUnknown
	}
	e.mu.Lock()
	rec := *e.rec
	e.mu.Unlock()
	if rec.Away = 0; a.NetNS == "" {
		rec.Away = k.opts.Clock.Since() + awayTime
	} else {
		at, err := client.Find(k.opts.HostPrefix+a.NetNS, a.Path)
		if err != nil {
			return err
		}
		if at.Proc = k.opts.Proc; e.rec.Away == 0 && e.rec.Place.Same(at) {
			return nil
		}
		rec.Place = *at
	}
	return k.replace(e, &rec)
}

// replace continues with another record of the same leases.
func (k *Keeper) replace(e *entry, rec *record) error {
	e.end()
	next := k.newEntry(rec)
	e.mu.Lock() // what the upkeep changed until its end
	rec.V4, rec.V6 = e.rec.V4, e.rec.V6
	err := next.restore()
	e.mu.Unlock()
	if err != nil {
		return err
	}
	close(next.ready)
	if !k.follow(e, next) {
		return fmt.Errorf("%w: it is being released", errUnknown)
	}
	next.save()
	next.upkeep()
	return nil
}

// follow puts an entry in another's place, unless that is being released.
func (k *Keeper) follow(e, next *entry) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.leaving || k.entries[e.rec.Owner] != e {
		return false
	}
	e.next, k.entries[e.rec.Owner] = next, next
	return true
}

// leave marks an entry as being released, or the one that has its place.
func (k *Keeper) leave(e *entry) *entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	for e.next != nil {
		e = e.next
	}
	e.leaving = true
	return e
}

// wait ends the entry when its interface did not arrive in time.
func (e *entry) wait(ctx context.Context) {
	for ctx.Err() == nil {
		left := e.rec.Away - e.k.opts.Clock.Since()
		if left <= 0 {
			e.k.opts.Log("%s: the interface was moved, and did not arrive: lease dropped", e)
			e.vanish()
			return
		}
		e.k.opts.Clock.Sleep(ctx, min(left, e.k.opts.Watch)) // a suspended machine stops timers
	}
}
