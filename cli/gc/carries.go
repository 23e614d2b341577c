// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// settleTime is how long gc waits for the kernel to delete the pairs of namespaces that
// are gone, which it does asynchronously and for many at once.
const settleTime = 2 * time.Second

// carries names a link of the attachment that is the host's end of a living pair, or that
// cannot be read.
func (c *collector) carries(a *Attachment) string { return c.pairOf(a, false) }

// pairOf implements carries. With ending it also counts a pair whose namespace has no
// holder any more.
func (c *collector) pairOf(a *Attachment, ending bool) string {
	if len(a.links) == 0 {
		return ""
	}
	s := c.NewSession()
	defer s.Close()
	host, err := kernel.OfSession(s).Host()
	if err != nil {
		return a.links[0].name
	}
	for _, l := range a.links {
		now, err := host.LinkAt(l.index)
		if nl.IsNotFound(err) {
			continue
		}
		if err != nil || now.Attrs().Name == l.name && netstate.Carries(now) && (ending || host.Lives(now.Attrs().NetNsID)) {
			return l.name
		}
	}
	return ""
}

// settle waits for the kernel to delete pairs that are the only sign of a living
// namespace. A pair that still carries then has its namespace where this process does not
// see it.
func (c *collector) settle(ctx context.Context, all []*Attachment) {
	pathsOnly := *c.world
	pathsOnly.carries = func(*Attachment) string { return "" }
	end := time.Now().Add(settleTime)
	for _, a := range all {
		if len(a.links) == 0 {
			continue
		}
		if state, reason := pathsOnly.life(a); state != life.Dead && reason != "" {
			continue
		}
		for c.pairOf(a, true) != "" && time.Now().Before(end) && clock.Sleep(ctx, 5*time.Millisecond) {
			// the condition waits for the kernel
		}
	}
}
