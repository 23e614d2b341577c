// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// endConnections ends the connections that policies deny since their last change, until ctx ends. It works
// beside the next programs.
func (n *networkPolicy) endConnections(ctx context.Context, a *Agent) {
	eachOnce(ctx, n.uncut, cutEvery, func() error {
		err := n.cut()
		if err != nil {
			err = uncutBy(err)
		}
		a.trouble.set(connectionsUncut, err)
		return err
	})
}

// eachOnce calls do once for all signals that come while it works or rests, until ctx ends. The first of them is not
// kept waiting. If do fails, it is called again after the rest.
func eachOnce(ctx context.Context, signals chan struct{}, rest time.Duration, do func() error) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		if do() != nil {
			resident.Signal(signals)
		}
		clock.Sleep(ctx, rest)
	}
}

func uncutBy(err error) error {
	return fmt.Errorf("end connections that network policies deny: %w", err)
}

// cut ends connections once.
func (n *networkPolicy) cut() error {
	n.mu.Lock()
	c := n.enforcer.DrainCut()
	n.mu.Unlock()
	if c == nil {
		return nil
	}
	err := n.cutConnections(c, func(c *enforce.Cut) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.enforcer.Update(c)
	})
	if err != nil {
		n.mu.Lock()
		n.enforcer.GiveBack(c)
		n.mu.Unlock()
	}
	return err
}
