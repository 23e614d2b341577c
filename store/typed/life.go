// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package typed

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/sleep"
	"github.com/patchbay-net/patchbay/store"
)

// Life is how long a store is open. Goroutines of the store are started by its
// Work, and end when it does.
type Life struct {
	Work sync.WaitGroup
	ctx  context.Context //nolint:containedctx // it is what this type is
	stop context.CancelCauseFunc
}

// NewLife begins one.
func NewLife() *Life {
	l := new(Life)
	l.ctx, l.stop = context.WithCancelCause(context.Background())
	return l
}

// Ctx is until End, with the cause store.ErrClosed.
func (l *Life) Ctx() context.Context { return l.ctx }

// End ends what goes on, and waits for it.
func (l *Life) End() {
	l.stop(store.ErrClosed)
	l.Work.Wait()
}

// Until is ctx, or until End, whose cause it has then. The function frees it.
func (l *Life) Until(ctx context.Context) (context.Context, func()) {
	both, cancel := context.WithCancelCause(ctx)
	if l.ctx.Err() != nil {
		cancel(context.Cause(l.ctx)) // now: what is called afterwards takes a moment
	}
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return both, func() { stop(); cancel(nil) }
}

// Ended is what a Watch says of an error when its ctx, of Until, may have ended:
// nothing of an end that the caller asked for.
func Ended(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if errors.Is(context.Cause(ctx), store.ErrClosed) {
		return store.ErrClosed
	}
	return nil
}

// Kept is a lease that is renewed, the half of store.Lease that no engine differs in.
type Kept struct {
	lost chan struct{}
	over func()
}

// Lost is store.Lease's.
func (k *Kept) Lost() <-chan struct{} { return k.lost }

// Over says that the lease has ended.
func (k *Kept) Over() { k.over() }

// Keep renews a lease that began just now until ctx or the life ends, or it is over;
// then it calls end, in the goroutine that calls renew.
func (l *Life) Keep(ctx context.Context, ttl time.Duration, renew func(context.Context) error, end func()) *Kept {
	ctx, done := l.Until(ctx)
	k := &Kept{lost: make(chan struct{})}
	k.over = sync.OnceFunc(func() { done(); close(k.lost) })
	l.Work.Go(func() {
		defer k.over()
		defer end()
		keep(ctx, ttl, renew)
	})
	return k
}

// keep renews until ctx ends or renew says ErrLeaseOver. No other error is the end:
// an engine that was away for longer than a ttl may well have the lease still
// (etcd gives each a full ttl when it starts), and all that hangs on it would be
// written again by all hosts at once, just when it is back. An attempt has a third
// of the ttl, so one that hangs is not the last one in time.
func keep(ctx context.Context, ttl time.Duration, renew func(context.Context) error) {
	for wait := ttl / 4; ; {
		sleep.For(ctx, wait+rand.N(wait/2)) // not all hosts at once
		if ctx.Err() != nil {
			return
		}
		attempt, cancel := context.WithTimeout(ctx, ttl/3)
		err := renew(attempt)
		cancel()
		switch {
		case err == nil:
			wait = ttl / 4
		case errors.Is(err, store.ErrLeaseOver):
			return
		default:
			wait = ttl / 10
		}
	}
}
