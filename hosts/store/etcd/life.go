// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"sync"

	"github.com/patchbay-net/patchbay/hosts/store"
)

// life is the time during which a store is open. It starts the store's goroutines, and end
// waits for them.
type life struct {
	work sync.WaitGroup
	ctx  context.Context //nolint:containedctx // this type exists to hold it; it is cancelled with the cause store.ErrClosed
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

// until returns a context that also ends when the store is closed, with the same cause. Call
// the returned function to release the context.
func (l *life) until(ctx context.Context) (context.Context, func()) {
	both, cancel := context.WithCancelCause(ctx)
	if l.ctx.Err() != nil {
		cancel(context.Cause(l.ctx)) // at once, before the AfterFunc below runs
	}
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return both, func() { stop(); cancel(nil) }
}

// ended returns the error of a Watch whose ctx, made by until, may have ended. It is nil if the
// caller itself ended it.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if errors.Is(context.Cause(ctx), store.ErrClosed) {
		return store.ErrClosed
	}
	return nil
}
