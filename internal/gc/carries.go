// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"time"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/sleep"
)

// settleTime is how long gc waits for the kernel to take the pairs of namespaces
// that are gone, which it does behind our back and for many at once.
const settleTime = 2 * time.Second

// carries names a link of the attachment that is the host's end of a living pair,
// or that cannot be looked at.
func (c *collector) carries(a *Attachment) string { return c.pairOf(a, false) }

// pairOf is carries. ending counts a pair whose namespace nothing holds any more.
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

// settle waits until no pair carries of which nothing else tells that it lives. A
// pair that still does has its namespace where this process does not see it.
func (c *collector) settle(ctx context.Context, all []*Attachment) {
	pathsOnly := *c.world
	pathsOnly.carries = func(*Attachment) string { return "" }
	end := time.Now().Add(settleTime)
	for _, a := range all {
		if len(a.links) == 0 {
			continue
		}
		if state, said := pathsOnly.life(a); state != life.Dead && said != "" {
			continue
		}
		for c.pairOf(a, true) != "" && time.Now().Before(end) && sleep.For(ctx, 5*time.Millisecond) {
			// the condition waits for the kernel
		}
	}
}
