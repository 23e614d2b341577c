// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/patchbay-net/patchbay/dhcp/client"
)

// errNoMoreTries ends -resendtimeout, in the reference's words.
var errNoMoreTries = errors.New("no more tries")

// Waits between two requests to servers that do not answer (RFC 2131, 4.1): 4 s doubling,
// plus or minus one at random; before that a few short ones.
const (
	resendFirst = 4 * time.Second
	resendFast  = 2 * time.Second
	fastTries   = 4
	jitter      = time.Second
)

// backoff is the sequence of waits.
type backoff struct {
	tries int
	next  time.Duration
	most  time.Duration
}

func (b *backoff) wait() time.Duration {
	base := resendFast
	if b.tries++; b.tries > fastTries {
		if b.next == 0 {
			b.next = resendFirst
		}
		base = b.next
		b.next = min(2*b.next, b.most)
	}
	return base + rand.N(2*jitter) - jitter
}

// ask requests a new address until a server gives one or ctx ends. The wait for an answer
// is the wait before the next request.
func (e *entry) ask(ctx context.Context, a *address) error {
	b := backoff{most: e.k.opts.ResendMax}
	var last error
	for {
		wait := b.wait()
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
		case errors.Is(err, client.ErrGone):
			return err
		}
		last = err
		e.k.opts.Log("%s: %s: %v", e, a.name, err)
		e.k.opts.Clock.Sleep(ctx, end-e.k.opts.Clock.Since())
	}
}

// upkeep starts the goroutines of an entry: one for each address, and one that checks
// whether the interface still exists. An entry whose interface is being moved waits until
// it arrives.
func (e *entry) upkeep() {
	if e.rec.Away != 0 {
		e.work.Go(func() { e.wait(e.ctx) })
		return
	}
	for _, a := range e.addrs {
		e.work.Go(func() { e.keep(e.ctx, a) })
	}
	e.work.Go(func() { e.watch(e.ctx) })
}

// watch ends the entry when its interface is gone: the server can no longer be reached
// through it, and lets the lease expire.
func (e *entry) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := e.rec.Place.Look(); errors.Is(err, client.ErrGone) {
			e.k.opts.Log("%s: %v: lease dropped", e, err)
			e.vanish()
			return
		}
		e.k.opts.Clock.Sleep(ctx, e.k.opts.Watch)
	}
}

// vanish removes the entry. Nothing is written after its file is removed.
func (e *entry) vanish() {
	e.stop()
	e.mu.Lock()
	e.gone = true
	e.mu.Unlock()
	if err := e.k.files.remove(e.rec.Owner); err != nil {
		e.k.opts.Log("%s: %v", e, err)
	}
	e.k.drop(e)
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
			e.extend(ctx, a, &extension{"rebound", a.proto.Rebind, g.Valid})
		case age >= g.T1:
			e.extend(ctx, a, &extension{"renewed", a.proto.Renew, g.T2})
		default:
			e.k.opts.Clock.Sleep(ctx, min(g.T1-age, e.k.opts.Watch)) // a suspended machine stops timers
		}
	}
}

// extension is renewing or rebinding: how to ask, and the age of the grant at which it
// ends.
type extension struct {
	done  string
	ask   func(context.Context, *client.Place, *client.Grant, time.Duration) (*client.Grant, error)
	until time.Duration
}

// extend asks once, and waits half of the remaining time before the next request (RFC 2131,
// 4.4.5).
func (e *entry) extend(ctx context.Context, a *address, x *extension) {
	g := a.grant
	left := x.until - e.age(a)
	pause := pauseOf(left, g.Valid)
	end := e.k.opts.Clock.Since() + min(pause, left)
	granted, err := x.ask(ctx, &e.rec.Place, g, max(minWait, min(e.k.opts.Timeout, pause, left)))
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, client.ErrNak):
		e.k.opts.Log("%s: %s: %v", e, a.name, err)
		e.lose(a)
	case err != nil:
		e.k.opts.Log("%s: %s: %v", e, a.name, err)
		e.k.opts.Clock.Sleep(ctx, end-e.k.opts.Clock.Since())
	default:
		e.accept(a, granted)
		e.change(g, granted)
		e.save()
		e.k.opts.Log("%s: lease %s, %s", e, x.done, e.describe())
	}
}

// minWait is the least time a server gets for an answer.
const minWait = 500 * time.Millisecond

// pauseOf is half of the remaining time, but not less than a minute or, for a short lease,
// a twentieth of it.
func pauseOf(left, valid time.Duration) time.Duration {
	return max(left/2, min(time.Minute, valid/20), minWait)
}

// change applies a server's changes on renewal.
func (e *entry) change(from, to *client.Grant) {
	if from.Address != to.Address {
		e.k.opts.Log("%s: the server changed %s to %s", e, from.Address, to.Address)
	}
	if err := e.rec.Place.Change(e.setup(from), e.setup(to)); err != nil {
		e.k.opts.Log("%s: apply changed lease: %v", e, err)
	}
}

// lose stops using an address that expired or was refused: another client may have it
// already.
func (e *entry) lose(a *address) {
	had, err := e.rec.Place.Withdraw(e.setup(a.grant))
	if err != nil {
		e.k.opts.Log("%s: withdraw %s: %v", e, a.grant.Address, err)
	}
	e.mu.Lock()
	a.grant = nil
	a.held.Raw, a.held.Lost = nil, a.held.Lost || had
	e.mu.Unlock()
	e.save()
}

// regain requests another address and puts it where the lost one was.
func (e *entry) regain(ctx context.Context, a *address) {
	if err := e.ask(ctx, a); err != nil {
		if ctx.Err() == nil {
			e.k.opts.Clock.Sleep(ctx, e.k.opts.Watch) // the interface is gone: watch ends the entry
		}
		return
	}
	if a.held.Lost {
		if err := e.rec.Place.Put(e.setup(a.grant)); err != nil {
			e.k.opts.Log("%s: apply new lease: %v", e, err)
		}
	}
	e.mu.Lock()
	a.held.Lost = false
	e.mu.Unlock()
	e.save()
	e.k.opts.Log("%s: lease regained, %s", e, e.describe())
}
