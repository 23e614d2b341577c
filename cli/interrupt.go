// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// interrupted is the signal that ended the context.
type interrupted struct{ syscall.Signal }

func (i interrupted) Error() string { return "interrupted (" + i.String() + ")" }

// interruptible cancels the context at SIGINT or SIGTERM, with the signal as the cause. Until
// stop is called, a second signal does nothing, so that it cannot interrupt the cleanup.
func (a *app) interruptible() (stop func()) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		if s, ok := (<-signals).(syscall.Signal); ok {
			cancel(interrupted{s})
		}
	}()
	a.ctx = ctx
	return func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}

// interrupted returns the signal that cancelled the context, if one did.
func (a *app) interrupted() (i interrupted, ok bool) {
	if a.ctx == nil { // some tests call report without a running command
		return i, false
	}
	return i, errors.As(context.Cause(a.ctx), &i)
}
