// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"sync"

	"github.com/patchbay-net/patchbay/hosts/store"
)

// life is the time for which a store is open. Its work starts the goroutines of the store,
// and end waits for them.
type life struct {
	work sync.WaitGroup
	ctx  context.Context //nolint:containedctx // it is what this type is; ends with the cause store.ErrClosed
	stop context.CancelCauseFunc
}

func newLife() *life {
	l := new(life)
	l.ctx, l.stop = context.WithCancelCause(context.Background())
	return l
}

// end ends the life, and waits for its goroutines.
func (l *life) end() {
	l.stop(store.ErrClosed)
	l.work.Wait()
}

// until returns a context that also ends with the life, with its cause. The function frees
// it.
func (l *life) until(ctx context.Context) (context.Context, func()) {
	both, cancel := context.WithCancelCause(ctx)
	if l.ctx.Err() != nil {
		cancel(context.Cause(l.ctx)) // at once, before the AfterFunc below runs
	}
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return both, func() { stop(); cancel(nil) }
}

// ended returns the error of a Watch whose ctx, of until, may have ended: nil for an end
// that the caller asked for.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if errors.Is(context.Cause(ctx), store.ErrClosed) {
		return store.ErrClosed
	}
	return nil
}
