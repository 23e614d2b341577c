// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"context"

	"github.com/patchbay-net/patchbay/daemons/internal/answer"
	"github.com/patchbay-net/patchbay/internal/drops"
)

// answer answers a client.
func (s *Service) answer(ctx context.Context, c *answer.Client) {
	var r drops.Request
	if err := c.Request(&r); err != nil {
		c.Send(drops.Line{Error: err.Error()}) //nolint:errcheck // the client has gone
		return
	}
	s.mu.Lock()
	former, failed := s.lines.former(r), s.failed
	var f *follower
	if r.Follow {
		f = s.lines.follow(r)
		defer s.leave(f)
	}
	s.mu.Unlock()
	if failed != nil {
		former = append(former, drops.Line{Error: failed.Error()})
	}
	for _, l := range former {
		if c.Send(l) != nil {
			return
		}
	}
	if f == nil {
		s.sum(ctx, c)
		return
	}
	answer.Follow(ctx, c, f.queue)
}

// leave removes a follower.
func (s *Service) leave(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lines.followers, f)
}

// sum sends the totals.
func (s *Service) sum(ctx context.Context, c *answer.Client) {
	if err := s.settle(ctx); err != nil {
		c.Send(drops.Line{Error: err.Error()}) //nolint:errcheck // it was the last line
		return
	}
	s.mu.Lock()
	totals := s.tally.totals()
	s.mu.Unlock()
	c.Send(drops.Line{Totals: totals}) //nolint:errcheck // it was the last line
}
