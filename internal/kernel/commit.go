// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// A DEL may run beside an ADD of the same attachment: a runtime that gave up an ADD calls DEL while the ADD still
// runs. The DEL waits only a second for the ADD. It then removes what it finds, and that does not include elements
// that the ADD has queued and not committed. So an ADD commits only while it certainly holds its
// facts, and it fails if its record is gone.

// commit commits the queue of the session.
func (k *Kernel) commit(ctx context.Context) error {
	err := k.whileHolding(ctx, func() error { return k.NFT.Commit(ctx) })
	if err == nil {
		err = k.withdrawDetached(ctx)
	}
	if k.failed = err != nil; !k.failed {
		k.settle()
	}
	if errors.Is(err, record.ErrReleased) {
		err = spec.Errorf(spec.CodeTryAgain, "a DEL of the attachment ran during its ADD: %w", err)
	}
	return err
}

// AfterCommit registers a function that runs after the firewall transaction of an ADD. If the ADD or the
// transaction fails, the function does not run.
func (k *Kernel) AfterCommit(r *plugin.Request, fn func()) {
	discarded := false
	r.Session.OnDiscard(func() { discarded = true })
	r.Session.OnFlush(func(context.Context) error {
		if !discarded && !k.failed {
			fn()
		}
		return nil
	})
}

// discard drops what an ADD has queued.
func (k *Kernel) discard() {
	k.NFT.Discard()
	for _, a := range k.repeats {
		a.over = true
	}
	clear(k.holding)
	k.adding = nil
}

// whileHolding runs fn while no DEL can release the facts whose elements are queued.
func (k *Kernel) whileHolding(ctx context.Context, fn func() error) error {
	holding := k.holding
	k.holding = make(map[owner.Key][]string)
	for o, facts := range holding {
		inner := fn
		fn = func() error { return k.Records.WhileHolding(ctx, facts, o, inner) }
	}
	return fn()
}

// withdrawDetached removes the elements that were committed for an attachment whose record a DEL has removed
// meanwhile.
func (k *Kernel) withdrawDetached(ctx context.Context) error {
	for _, rec := range k.adding {
		if k.Records.Exists(rec.Network, rec.Owner, rec.Plugin) {
			continue
		}
		err := fmt.Errorf("record of %s: %w", rec.Plugin, record.ErrReleased)
		for _, gone := range k.adding {
			k.Withdraw(gone)
		}
		return errors.Join(err, k.NFT.Commit(ctx))
	}
	return nil
}
