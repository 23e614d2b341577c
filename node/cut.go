// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/policy/enforce"
)

// endConnections ends the connections that policies deny since their last change, until ctx ends. It works
// beside the next programs, and all that changes within cutEvery is one look at the kernel's table.
func (n *networkPolicy) endConnections(ctx context.Context, a *Agent) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.uncut:
		}
		err := n.cut()
		if err != nil {
			err = uncutBy(err)
			resident.Signal(n.uncut)
		}
		a.trouble.set(connectionsUncut, err)
		clock.Sleep(ctx, cutEvery)
	}
}

func uncutBy(err error) error {
	return fmt.Errorf("end connections that network policies deny: %w", err)
}

// cut ends connections once.
func (n *networkPolicy) cut() error {
	n.mu.Lock()
	c := n.enforcer.TakeCut()
	n.mu.Unlock()
	if c == nil {
		return nil
	}
	err := c.Do(func(c *enforce.Cut) {
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
