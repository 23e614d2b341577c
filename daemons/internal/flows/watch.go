// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/internal/answer"
	"github.com/patchbay-net/patchbay/daemons/internal/nflog"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/flows"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/sight"
)

const (
	// tellRate is how many new connections the kernel tells in a second.
	tellRate = 500

	// sayEvery is how often clients learn how many were not shown.
	sayEvery = 10 * time.Second
)

// watch tells new connections while somebody follows.
type watch struct {
	turn  sync.Mutex         // held while rules come or go
	end   context.CancelFunc // ends those that are there
	ended chan struct{}      // they have gone

	mu        sync.Mutex
	followers map[*follower]bool
	sums      sums
}

type follower struct {
	request flows.Request
	queue   *answer.Queue[flows.Line]
}

// sums are the connections since the agent began. Each that began while somebody looked is in one of them.
type sums struct{ told, lost, notShown, missed uint64 }

// follow sends new connections to a client.
func (s *Service) follow(ctx context.Context, c *answer.Client, r flows.Request) {
	f := &follower{r, answer.NewQueue(func(missed uint64) flows.Line { return flows.Line{Missed: missed} })}
	if err := s.join(ctx, f); err != nil {
		c.Send(flows.Line{Error: err.Error()}) //nolint:errcheck // it was the last line
		return
	}
	defer s.leave(f)
	answer.Follow(ctx, c, f.queue)
}

// join adds a follower. The first one makes the rules.
func (s *Service) join(ctx context.Context, f *follower) error {
	w := &s.watch
	w.turn.Lock()
	defer w.turn.Unlock()
	if w.count() == 0 {
		w.finish() // after a failure
		t, err := begin(s.opts.Group)
		if err != nil {
			return err
		}
		t.end = s.opts.End
		ctx, w.end = context.WithCancel(ctx)
		ended := make(chan struct{})
		w.ended = ended
		go func() {
			defer close(ended)
			w.run(ctx, t)
		}()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.followers == nil {
		w.followers = map[*follower]bool{}
	}
	w.followers[f] = true
	return nil
}

// leave removes a follower. With the last one, the rules go before it returns.
func (s *Service) leave(f *follower) {
	w := &s.watch
	w.turn.Lock()
	defer w.turn.Unlock()
	w.mu.Lock()
	delete(w.followers, f)
	w.mu.Unlock()
	if w.count() == 0 {
		w.finish()
	}
}

func (w *watch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.followers)
}

// finish removes the rules, if there are any.
func (w *watch) finish() {
	if w.end != nil {
		w.end()
		<-w.ended
		w.end = nil
	}
}

// telling is what the kernel has while somebody follows.
type telling struct {
	group *nflog.Listener
	rules *nft.NewConnections
	end   func(netip.Addr) sight.End

	told, lost, notShown uint64 // of these rules
	said                 uint64 // of what was lost
}

// begin binds the group before it makes the rules, so that each message is read.
func begin(group uint16) (*telling, error) {
	g, err := nflog.Listen(group)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("group %d of NFLOG has another reader: end that program, or choose another group with --flows-group", group)
	}
	if err != nil {
		return nil, err
	}
	rules, err := nft.TellNewConnections(group, tellRate)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return &telling{group: g, rules: rules}, nil
}

// run tells until ctx ends or the group fails, and removes the rules.
func (w *watch) run(ctx context.Context, t *telling) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for clock.Sleep(ctx, sayEvery) {
			w.say(ctx, t)
		}
	})
	err := w.read(ctx, t)
	cancel()
	wg.Wait()
	t.rules.Close() //nolint:errcheck // the kernel removes them with the socket
	if err != nil {
		w.fail(err)
	}
}

// read reads the group.
func (w *watch) read(ctx context.Context, t *telling) error {
	stop := context.AfterFunc(ctx, func() { t.group.Close() }) //nolint:errcheck // it ends Receive
	defer func() {
		if stop() {
			t.group.Close() //nolint:errcheck // nothing was written
		}
	}()
	for {
		list, lost, err := t.group.Receive()
		if ctx.Err() != nil {
			return nil
		}
		w.receive(t, list, lost)
		if err != nil {
			return fmt.Errorf("new connections are not told any more: %w", err)
		}
	}
}

// fail tells all followers why there is no more, and sends them away.
func (w *watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.followers {
		f.queue.Give(flows.Line{Error: err.Error()})
		f.queue.Close()
	}
	clear(w.followers)
}

// receive passes on what the kernel told.
func (w *watch) receive(t *telling, list []nflog.Packet, lost uint64) {
	lines := make([]flows.Line, len(list))
	for i := range list {
		p := &list[i]
		lines[i].Connection = &flows.Connection{Time: p.Time, From: t.end(p.From), To: t.end(p.To), Protocol: l4.Protocol(p.Protocol).String(), Port: p.Port}
	}
	w.mu.Lock()
	t.told += uint64(len(list))
	t.lost += lost
	w.sums.told += uint64(len(list))
	w.sums.lost += lost
	w.mu.Unlock()
	for _, l := range lines {
		w.give(l)
	}
}

// give passes a line on to those whom it concerns.
func (w *watch) give(l flows.Line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.followers {
		if f.request.Concerns(l) && !f.queue.Give(l) {
			w.sums.missed++
		}
	}
}

// say says how many connections were not shown since it last did. What the counter has counted has arrived a moment later.
func (w *watch) say(ctx context.Context, t *telling) {
	count, err := t.rules.Count()
	if err != nil {
		w.give(flows.Line{Error: err.Error()})
		return
	}
	if !clock.Sleep(ctx, nflog.Late) {
		return
	}
	if m := w.more(t, count); m != (flows.More{}) {
		w.give(flows.Line{More: &m})
	}
}

// more compares the kernel's counter with what came. What came after the counter was read belongs to the next time.
func (w *watch) more(t *telling, count uint64) (m flows.More) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m.Lost, t.said = t.lost-t.said, t.lost
	if known := t.told + t.lost + t.notShown; count > known {
		m.NotShown = count - known
		t.notShown += m.NotShown
		w.sums.notShown += m.NotShown
	}
	return m
}

func (w *watch) collect(value func(kind prometheus.ValueType, name, help string, n float64)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	value(prometheus.GaugeValue, "flow_followers", "Clients that patchbay flows -f serves now: new connections cost more.", float64(len(w.followers)))
	for _, c := range []struct {
		name, help string
		n          uint64
	}{
		{"flow_events_total", "New connections that were told while a client followed.", w.sums.told},
		{"flow_events_lost_total", "New connections that the kernel told and that did not come to the agent.", w.sums.lost},
		{"flow_events_not_shown_total", "New connections that the limit kept back.", w.sums.notShown},
		{"flow_events_missed_total", "Lines for which a client was too slow.", w.sums.missed},
	} {
		value(prometheus.CounterValue, c.name, c.help, float64(c.n))
	}
}
