// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package typed

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/store"
)

// Life is the time for which a store is open. Its Work starts the goroutines of the store,
// and End waits for them.
type Life struct {
	Work sync.WaitGroup
	ctx  context.Context //nolint:containedctx // it is what this type is
	stop context.CancelCauseFunc
}

// NewLife begins a Life.
func NewLife() *Life {
	l := new(Life)
	l.ctx, l.stop = context.WithCancelCause(context.Background())
	return l
}

// Ctx returns the context of the life, which ends with the cause store.ErrClosed.
func (l *Life) Ctx() context.Context { return l.ctx }

// End ends the life, and waits for its goroutines.
func (l *Life) End() {
	l.stop(store.ErrClosed)
	l.Work.Wait()
}

// Until returns a context that also ends with the life, with its cause. The function frees
// it.
func (l *Life) Until(ctx context.Context) (context.Context, func()) {
	both, cancel := context.WithCancelCause(ctx)
	if l.ctx.Err() != nil {
		cancel(context.Cause(l.ctx)) // at once, before the AfterFunc below runs
	}
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return both, func() { stop(); cancel(nil) }
}

// Ended returns the error of a Watch whose ctx, of Until, may have ended: nil for an end
// that the caller asked for.
func Ended(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if errors.Is(context.Cause(ctx), store.ErrClosed) {
		return store.ErrClosed
	}
	return nil
}

// Kept is a renewed lease: the part of store.Lease that all engines share.
type Kept struct {
	lost chan struct{}
	over func()
}

// Lost implements store.Lease.
func (k *Kept) Lost() <-chan struct{} { return k.lost }

// Over marks the lease as ended.
func (k *Kept) Over() { k.over() }

// Keep renews a new lease until ctx or the life ends, or the lease is over; then it calls
// end, in the goroutine that calls renew.
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

// keep renews until ctx ends or renew returns ErrLeaseOver. No other error ends it: an
// engine that was unreachable for longer than a ttl may well still have the lease (etcd
// gives each a full ttl when it starts), and all hosts would write their objects again at
// once, just when it is back. An attempt has a third of the ttl, so that one that hangs
// leaves time for another.
func keep(ctx context.Context, ttl time.Duration, renew func(context.Context) error) {
	for wait := ttl / 4; ; {
		clock.Sleep(ctx, wait+rand.N(wait/2)) // hosts must not renew at the same time
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
