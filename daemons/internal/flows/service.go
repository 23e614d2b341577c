// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package flows dumps conntrack now and then, makes flows of it (internal/flows), and serves them to `patchbay flows`. While
// a client follows, and only then, rules tell new connections to a group of NFLOG.
package flows

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-net/patchbay/daemons/internal/answer"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/flows"
	"github.com/patchbay-net/patchbay/internal/sight"
)

const (
	// dumpEvery is the shortest time between two dumps.
	dumpEvery = 10 * time.Second

	// restFor is how many times as long as a dump a Service rests after it: dumps take at most one percent of a core.
	restFor = 100
)

// Options are what a Service needs.
type Options struct {
	Group    uint16        // of NFLOG, for new connections
	Listener net.Listener  // the socket of clients; nil: there is none. Run closes it
	Every    time.Duration // the shortest time between two dumps; 0: 10 s
	Space    string        // what the names of metrics begin with, such as patchbay_node

	// Ends returns a function that names the ends of the connections of a dump: it is called twice for each of them.
	Ends func() func(netip.Addr) sight.End

	// End names an end of a new connection.
	End func(netip.Addr) sight.End

	// Failed gets an error while conntrack cannot be dumped, and nil once it can.
	Failed func(error)
}

// Service has the flows of a machine. It is safe for concurrent use.
type Service struct {
	opts     Options
	survey   func(func(*conntrack.Entry)) error
	duration prometheus.Histogram

	mu    sync.Mutex
	table *flows.Table
	wrong error // why the last dump failed

	watch watch
}

// New returns a Service that has seen nothing yet.
func New(opts Options) *Service {
	return &Service{
		opts: opts, survey: conntrack.Survey, table: flows.New(),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: opts.Space, Name: "flow_dump_duration_seconds", Help: "Time of a dump of conntrack.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 7), //nolint:mnd // 1 ms to 4 s
		}),
	}
}

// pause returns how long a Service rests after a dump.
func (s *Service) pause(took time.Duration) time.Duration {
	return max(cmp.Or(s.opts.Every, dumpEvery), restFor*took)
}

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for rest := s.dump(); clock.Sleep(ctx, rest); {
			rest = s.dump()
		}
	})
	if s.opts.Listener != nil {
		wg.Go(func() {
			answer.Clients(ctx, &wg, s.opts.Listener, func(c *answer.Client) { s.answer(ctx, c) })
		})
	}
	wg.Wait()
}

// dump reads conntrack once, and returns when to do it again. After an error, the flows are those of the part that was read.
func (s *Service) dump() (rest time.Duration) {
	end := s.opts.Ends()
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	s.table.Begin(began)
	s.wrong = s.survey(func(e *conntrack.Entry) { s.table.Add(e, end) })
	took := time.Since(began)
	rest = s.pause(took)
	s.table.End(took, rest)
	s.duration.Observe(took.Seconds())
	s.opts.Failed(s.wrong)
	return rest
}

// answer answers a client.
func (s *Service) answer(ctx context.Context, c *answer.Client) {
	var r flows.Request
	if err := c.Request(&r); err != nil {
		c.Send(flows.Line{Error: err.Error()}) //nolint:errcheck // the client has gone
		return
	}
	if r.Follow {
		s.follow(ctx, c, r)
		return
	}
	for _, l := range s.lines(r) {
		if c.Send(l) != nil {
			return
		}
	}
}

func (s *Service) lines(r flows.Request) []flows.Line {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.table.Lines(r)
	if s.wrong != nil {
		lines = append([]flows.Line{{Error: s.wrong.Error()}}, lines...)
	}
	return lines
}

// Describe implements prometheus.Collector. It describes nothing, so the values are not checked.
func (s *Service) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *Service) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	t := s.table.Totals()
	s.mu.Unlock()
	value := func(kind prometheus.ValueType, name, help string, n float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(s.opts.Space+"_"+name, help, nil, nil), kind, n)
	}
	value(prometheus.GaugeValue, "flows", "Flows of containers and of this machine that are kept.", float64(t.Flows))
	value(prometheus.GaugeValue, "flow_connections", "Connections in the last dump of conntrack.", float64(t.Connections))
	value(prometheus.CounterValue, "flow_connections_seen_total", "Connections that a dump had first.", float64(t.Seen))
	value(prometheus.CounterValue, "flows_folded_total", "Of these, those that have no flow of their own, because there were too many flows.", float64(t.Folded))
	s.duration.Collect(out)
	s.watch.collect(value)
}
