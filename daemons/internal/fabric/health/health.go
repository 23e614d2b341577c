// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package health answers for the agent of a machine what monitoring asks: is it ready, does it hang, and the metrics
// that every such agent has (daemons/internal/fabric). They have the same names after the name of the agent's service.
package health

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/patchbay-net/patchbay/daemons/internal/fabric"
	"github.com/patchbay-net/patchbay/internal/mesh"
)

// HungAfter is longer than an agent takes to bring its machine into the desired state.
const HungAfter = 5 * fabric.ReconcileEvery

// Options say of what agent a Health is.
type Options struct {
	Service  string                // the metrics are patchbay_SERVICE_…
	Unready  error                 // why the machine is not ready before the first Turned
	Restart  string                // what restarts the agent, for its operator
	Hangs    func() error          // if it is not nil, returns an error if another part of the agent hangs
	Heard    func() time.Time      // when the agent last heard of the other machines; zero: never
	Problems func() map[string]int // how many things are wrong now, by reason
}

// Health stores what an agent last did, for the pages of Handler. It is safe for concurrent use.
type Health struct {
	o        Options
	registry *prometheus.Registry
	applies  *prometheus.CounterVec
	duration prometheus.Histogram

	mu     sync.Mutex
	unable error
	turned time.Time
	peers  int
	routes int
}

// New makes the Health of an agent that starts now.
func New(o Options) *Health {
	space := "patchbay_" + o.Service
	h := &Health{
		o: o, unable: o.Unready, turned: time.Now(), registry: prometheus.NewRegistry(),
		applies: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: space, Name: "applies_total", Help: "Comparisons of the kernel with the planned state."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: space, Name: "apply_duration_seconds", Help: "Time of such a comparison.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8), //nolint:mnd // 1 ms to 16 s
		}),
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: space, Name: name, Help: help}, value)
	}
	h.Register(h.applies, h.duration, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		gauge("peers", "Other machines of the mesh.", func() float64 { peers, _ := h.size(); return float64(peers) }),
		gauge("routes", "Routes to blocks of other machines.", func() float64 { _, routes := h.size(); return float64(routes) }),
		gauge("last_sync_timestamp_seconds", "When the agent last heard of the other machines; 0: never.", h.heard),
		gauge("ready", "1 if this machine is ready for containers.", func() float64 { return one(h.Ready() == nil) }),
		problems{prometheus.NewDesc(space+"_problems", "What is wrong now, with this machine and with others.", []string{"reason"}, nil), o.Problems})
	return h
}

// Register adds metrics that only this agent has.
func (h *Health) Register(list ...prometheus.Collector) { h.registry.MustRegister(list...) }

// Applied counts a comparison of the kernel with the planned state (fabric.Carrier).
func (h *Health) Applied(took time.Duration, err error) {
	result := "success"
	if err != nil {
		result = "failure"
	}
	h.applies.WithLabelValues(result).Inc()
	h.duration.Observe(took.Seconds())
}

// Turned notes that the agent has looked at its machine, and why the machine is not ready for containers. It reports
// whether that reason is another one than before.
func (h *Health) Turned(unable error, peers []mesh.Peer) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = fmt.Sprint(unable) != fmt.Sprint(h.unable)
	h.unable, h.turned, h.peers, h.routes = unable, time.Now(), len(peers), 0
	for i := range peers {
		h.routes += len(peers[i].Blocks)
	}
	return changed
}

// Ready returns why the machine is not ready for containers, or nil if it is.
func (h *Health) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unable
}

// Healthy returns an error if the agent hangs.
func (h *Health) Healthy() error {
	if h.o.Hangs != nil {
		if err := h.o.Hangs(); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.turned) > HungAfter {
		return fmt.Errorf("the agent hangs: it has not looked at this machine since %v: %s", h.turned.Format(time.RFC3339), h.o.Restart)
	}
	return nil
}

func (h *Health) size() (peers, routes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.peers, h.routes
}

func (h *Health) heard() float64 {
	if at := h.o.Heard(); !at.IsZero() {
		return float64(at.Unix())
	}
	return 0
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// problems counts the current problems by reason.
type problems struct {
	desc  *prometheus.Desc
	count func() map[string]int
}

// Describe implements prometheus.Collector.
func (p problems) Describe(out chan<- *prometheus.Desc) { out <- p.desc }

// Collect implements prometheus.Collector.
func (p problems) Collect(out chan<- prometheus.Metric) {
	for reason, n := range p.count() {
		out <- prometheus.MustNewConstMetric(p.desc, prometheus.GaugeValue, float64(n), reason)
	}
}

// Handler serves /healthz, /readyz and /metrics.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	check := func(state func() error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if err := state(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok") //nolint:errcheck // the client is gone
		}
	}
	mux.HandleFunc("/healthz", check(h.Healthy))
	mux.HandleFunc("/readyz", check(h.Ready))
	mux.Handle("/metrics", promhttp.HandlerFor(h.registry, promhttp.HandlerOpts{}))
	return mux
}
