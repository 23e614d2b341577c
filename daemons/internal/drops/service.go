// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package drops reads what the kernel's rules tell about packets that they drop, keeps the last lines, and serves them to
// `patchbay drops` (internal/drops). It knows no policies: its caller names the ends of a packet and the reason.
//
// The kernel tells a flow once in ten seconds, within limits (internal/nft/tell.go), and counts every packet. The
// difference of the counters is what was not shown.
package drops

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/internal/answer"
	"github.com/patchbay-net/patchbay/daemons/internal/nflog"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/drops"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// sayEvery is how often a Service says how many packets were not shown.
const sayEvery = 10 * time.Second

// Options are what a Service needs.
type Options struct {
	Group uint16 // of NFLOG

	// Listener is the socket of clients; nil: there is none. Run closes it.
	Listener net.Listener

	// Counters returns the kernel's counters of dropped packets.
	Counters func() (map[Kind]uint64, error)

	// Explain names the ends of a packet and the reason. It is called by one goroutine.
	Explain func(nflog.Packet) drops.Drop

	// Failed gets an error while packets are not told, and nil once they are.
	Failed func(error)
}

// Service reads dropped packets and serves them. It is safe for concurrent use.
type Service struct {
	opts Options

	mu     sync.Mutex
	lines  lines
	tally  tally
	failed error // why nothing is read
}

// New returns a Service that reads nothing yet.
func New(opts Options) *Service { return &Service{opts: opts, tally: newTally(time.Now())} }

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { resident.Keep(ctx, s.fail, func() error { return s.listen(ctx) }) })
	wg.Go(func() { s.say(ctx) })
	if s.opts.Listener != nil {
		wg.Go(func() { answer.Clients(ctx, &wg, s.opts.Listener, func(c *answer.Client) { s.answer(ctx, c) }) })
	}
	wg.Wait()
}

func (s *Service) fail(err error) {
	s.mu.Lock()
	s.failed = err
	s.mu.Unlock()
	s.opts.Failed(err)
}

// listen reads the group until ctx ends, or the socket fails. It reads the counters before it binds the group, so that
// each packet that is told is counted.
func (s *Service) listen(ctx context.Context) error {
	if err := s.count(); err != nil {
		return err
	}
	l, err := nflog.Listen(s.opts.Group)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("group %d of NFLOG has another reader, so dropped packets are counted and not told: end that program, or choose another group with --drops-group", s.opts.Group)
	}
	if err != nil {
		return fmt.Errorf("dropped packets are counted and not told: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() }) //nolint:errcheck // it ends Receive
	defer func() {
		if stop() {
			l.Close() //nolint:errcheck // nothing was written
		}
	}()
	s.fail(nil)
	for {
		list, lost, err := l.Receive()
		if ctx.Err() != nil {
			return nil
		}
		s.receive(list, lost)
		if err != nil {
			return fmt.Errorf("dropped packets are counted and not told: %w", err)
		}
	}
}

// receive keeps what the kernel told.
func (s *Service) receive(list []nflog.Packet, lost uint64) {
	found := make([]drops.Drop, len(list))
	for i, p := range list {
		found[i] = s.opts.Explain(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.lost += lost
	for i := range found {
		d := &found[i]
		s.tally.told[Kind{d.Direction, d.Cause}]++
		if d.Unexplained {
			s.tally.unexplained++
		}
		s.add(drops.Line{Drop: d})
	}
}

func (s *Service) add(l drops.Line) { s.tally.missed += s.lines.add(l) }

// count reads the kernel's counters.
func (s *Service) count() error {
	counters, err := s.opts.Counters()
	if err != nil {
		return fmt.Errorf("count dropped packets: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.read(counters)
	return nil
}

// say says now and then how many packets were not shown, until ctx ends.
func (s *Service) say(ctx context.Context) {
	for clock.Sleep(ctx, sayEvery-nflog.Late) {
		if s.settle(ctx) != nil { // the next time says it
			continue
		}
		s.mu.Lock()
		for _, m := range s.tally.more() {
			s.add(drops.Line{More: &m})
		}
		s.mu.Unlock()
	}
}

// settle reads the counters, and waits until what they have counted has arrived.
func (s *Service) settle(ctx context.Context) error {
	err := s.count()
	if err == nil {
		clock.Sleep(ctx, nflog.Late)
	}
	return err
}

// Stats are sums since the agent began to read, for metrics.
type Stats struct {
	Told, Counted             map[Kind]uint64
	Lost, Missed, Unexplained uint64
}

// Stats returns the sums up to now. Counted may be ten seconds old.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.tally
	return Stats{Told: maps.Clone(t.told), Counted: maps.Clone(t.counted), Lost: t.lost, Missed: t.missed, Unexplained: t.unexplained}
}
