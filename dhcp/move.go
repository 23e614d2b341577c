// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
)

// awayTime is how long an interface may be missing while a program moves it.
const awayTime = 5 * time.Minute

// Move follows an interface that a program moves to another namespace or renames. a.Netns is the
// new namespace, and a.Path the new name. If a.Netns is empty, the interface is about to move.
// For the next five minutes the keeper then renews nothing, and a missing interface does not
// count as gone. The attachment keeps the name a.IfName.
func (k *Keeper) Move(ctx context.Context, a *dhcprpc.Args) error {
	_, e, err := k.find(a)
	if err != nil {
		return err
	}
	if e == nil {
		return errUnknown
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if e.err != nil {
		return errUnknown
	}
	if a.Netns == "" {
		return e.move(nil)
	}
	at, err := k.place(a.Netns, a.Path)
	if err != nil {
		return err
	}
	return e.move(at)
}

// move continues the upkeep at another place. If to is nil, move pauses the upkeep.
func (e *entry) move(to *client.Place) error {
	e.turn.Lock()
	defer e.turn.Unlock()
	if to != nil && e.rec.Away == 0 && e.isAt(to) {
		return nil
	}
	e.pause()
	e.work.Wait()
	e.mu.Lock()
	if e.gone {
		e.mu.Unlock()
		return fmt.Errorf("%w: it is being released", errUnknown)
	}
	if to == nil {
		e.rec.Away = e.k.opts.Clock.Since() + awayTime
	} else {
		e.rec.Away, e.rec.Place = 0, *to
	}
	e.mu.Unlock()
	e.save()
	e.upkeep()
	return nil
}

// wait ends the entry if its interface does not arrive in time.
func (e *entry) wait(ctx context.Context) {
	for ctx.Err() == nil {
		left := e.rec.Away - e.k.opts.Clock.Since()
		if left <= 0 {
			e.vanish(errors.New("the interface was moved, and did not arrive"))
			return
		}
		e.k.opts.Clock.Sleep(ctx, min(left, e.k.opts.Watch)) // sleeps in short steps, because timers stop while the machine is suspended
	}
}
