// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/clock"
)

// errNoMoreTries means that the time of -resendtimeout is over. The text is the reference's.
var errNoMoreTries = errors.New("no more tries")

// The client waits between two requests to servers that do not answer (RFC 2131, 4.1). The first
// few waits are short. The later ones begin at 4 s and double each time. Each wait is longer or
// shorter by up to a second, at random.
const (
	resendFirst = 4 * time.Second
	resendFast  = 2 * time.Second
	fastTries   = 4
	jitter      = time.Second
)

// resendWait returns how long to wait after this number of requests.
func resendWait(sent int, most time.Duration) time.Duration {
	base := resendFast
	if slow := sent - fastTries; slow >= 0 {
		base = min(resendFirst<<min(slow, 16), most)
	}
	return base + rand.N(2*jitter) - jitter
}

// ask requests an address until a server grants one or ctx ends. The wait before the next request
// begins with the request, not with the end of the wait for its answer.
func (e *entry) ask(ctx context.Context, a *address) error {
	var last error
	for sent := 0; ; sent++ {
		wait := resendWait(sent, e.k.opts.ResendMax)
		end := e.k.opts.Clock.Since() + wait
		g, err := a.proto.Acquire(ctx, &e.rec.Place, min(wait, e.k.opts.Timeout))
		switch {
		case err == nil:
			e.accept(a, g)
			return nil
		case ctx.Err() != nil && last != nil:
			return fmt.Errorf("%w: %s: %w", context.Cause(ctx), a.name, last)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, client.ErrRemoved):
			return err
		}
		last = err
		e.k.opts.Log("%s: %s: %v", e, a.name, err)
		e.sleep(ctx, end-e.k.opts.Clock.Since())
	}
}

// upkeep starts the goroutines of an entry: one for each address, and one that checks whether
// the interface still exists. If the interface is being moved, the goroutines start when it has
// arrived.
func (e *entry) upkeep() {
	ctx, pause := context.WithCancel(e.ctx)
	e.pause = pause
	if e.rec.Away != 0 {
		e.work.Go(func() { e.wait(ctx) })
		return
	}
	for _, a := range e.addrs {
		e.work.Go(func() { e.keep(ctx, a) })
	}
	e.work.Go(func() { e.watch(ctx) })
}

// watch ends the entry when its interface is gone.
func (e *entry) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := e.rec.Place.Check(); errors.Is(err, client.ErrRemoved) {
			e.vanish(err)
			return
		}
		e.k.opts.Clock.Sleep(ctx, e.k.opts.Watch)
	}
}

// keep renews one address until ctx ends.
func (e *entry) keep(ctx context.Context, a *address) {
	for ctx.Err() == nil {
		g := a.grant
		if g == nil {
			e.regain(ctx, a)
			continue
		}
		switch age := e.age(a); {
		case age >= g.Valid:
			e.k.opts.Log("%s: %s lease expired", e, a.name)
			e.lose(a)
		case age >= g.T2:
			e.extend(ctx, a, true, g.Valid)
		case age >= g.T1:
			e.extend(ctx, a, false, g.T2)
		default:
			e.catchUp(a, g)
			e.sleep(ctx, min(g.T1-age, e.k.opts.Watch))
		}
	}
}

// sleep waits for d by the time since boot. It sleeps in short steps, because timers stop while the
// machine is suspended.
func (e *entry) sleep(ctx context.Context, d time.Duration) {
	c := e.k.opts.Clock
	for end := c.Since() + d; ctx.Err() == nil && c.Since() < end; {
		c.Sleep(ctx, min(end-c.Since(), e.k.opts.Watch))
	}
}

// extend asks once for more time. It asks the server of the lease or, with rebind, any server.
// phaseEnd is the age of the grant at which the current phase ends. If extend fails, it waits for
// half of the rest of the phase (RFC 2131, 4.4.5).
func (e *entry) extend(ctx context.Context, a *address, rebind bool, phaseEnd time.Duration) {
	g := a.grant
	remaining := phaseEnd - e.age(a)
	pause := pauseOf(remaining, g.Valid)
	end := e.k.opts.Clock.Since() + min(pause, remaining)
	granted, err := a.proto.Extend(ctx, &e.rec.Place, g, rebind, max(minWait, min(e.k.opts.Timeout, pause, remaining)))
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, client.ErrNak):
		e.k.opts.Log("%s: %s: %v", e, a.name, err)
		e.lose(a)
	case err != nil:
		e.k.opts.Log("%s: %s: %v", e, a.name, err)
		e.sleep(ctx, end-e.k.opts.Clock.Since())
	default:
		e.accept(a, granted)
		e.note(a, e.change(a, g, granted))
		e.save()
		done := "renewed"
		if rebind {
			done = "rebound"
		}
		e.k.opts.Log("%s: lease %s, %s", e, done, e.describe())
	}
}

// minWait is the shortest time that a server gets for an answer.
const minWait = 500 * time.Millisecond

// pauseOf returns half of the remaining time, but at least a minute. For a lease shorter
// than 20 minutes it returns at least a twentieth of the lease.
func pauseOf(remaining, valid time.Duration) time.Duration {
	return max(remaining/2, min(time.Minute, valid/20), minWait)
}

// change brings the interface from one lease to the next, which the server changed in a renewal. It
// returns what is left to do. It logs a refused route once, however often it tries again.
func (e *entry) change(a *address, from, to *client.Lease) client.Behind {
	if from.Address != to.Address && from.Address.IsValid() {
		e.k.opts.Log("%s: the server changed %s to %s", e, from.Address, to.Address)
	}
	_, behind, err := e.rec.Place.Change(a.Behind.On(from), to)
	switch {
	case err != nil && len(behind.Missing) == 0:
		e.k.opts.Log("%s: apply changed lease: %v", e, err)
	case err != nil && !behind.Equal(a.Behind):
		e.k.opts.Log("%s: apply changed lease: %v: the routes of the lease before stay until this one can be set", e, err)
	case err == nil && a.Behind.Any():
		e.k.opts.Log("%s: all routes of the lease are set", e)
	}
	return behind
}

// catchUp tries again to set the routes that the kernel refused.
func (e *entry) catchUp(a *address, g *client.Lease) {
	e.mu.Lock()
	before := a.Behind
	e.mu.Unlock()
	if !before.Any() {
		return
	}
	if behind := e.change(a, g, g); !behind.Equal(before) {
		e.note(a, behind)
		e.save()
	}
}

// note stores what is left to do for an address's routes.
func (e *entry) note(a *address, behind client.Behind) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.Behind = behind
}

// lose removes an address that expired or was refused. Another client may have the address already.
func (e *entry) lose(a *address) {
	had, _, err := e.rec.Place.Change(a.Behind.On(a.grant), &client.Lease{})
	if err != nil {
		e.k.opts.Log("%s: withdraw %s: %v", e, a.grant.Address, err)
	}
	e.mu.Lock()
	a.grant = nil
	a.Raw, a.Lost, a.Behind = nil, a.Lost || had, client.Behind{}
	e.mu.Unlock()
	e.save()
}

// regain requests another address and puts it in the place of the lost one.
func (e *entry) regain(ctx context.Context, a *address) {
	if err := e.ask(ctx, a); err != nil {
		if ctx.Err() == nil {
			e.k.opts.Clock.Sleep(ctx, e.k.opts.Watch) // the interface is gone, and watch will end the entry
		}
		return
	}
	if a.Lost {
		e.note(a, e.change(a, &client.Lease{}, a.grant))
	}
	e.mu.Lock()
	a.Lost = false
	e.mu.Unlock()
	e.save()
	e.k.opts.Log("%s: lease regained, %s", e, e.describe())
}

// Clock measures time since boot, and waits by that time. Tests replace it.
type Clock interface {
	Since() time.Duration
	// Sleep waits for d, at most until ctx ends.
	Sleep(ctx context.Context, d time.Duration)
}

// machine is the clock of the machine.
type machine struct{}

func (machine) Since() time.Duration { return clock.SinceBoot() }

func (machine) Sleep(ctx context.Context, d time.Duration) { clock.Sleep(ctx, d) }

// within works like context.WithTimeoutCause, but by the keeper's clock.
func (k *Keeper) within(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		k.opts.Clock.Sleep(ctx, d)
		cancel(cause)
	}()
	return ctx, func() { cancel(nil) }
}
