// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the values that the agent serves at /metrics.
type metrics struct {
	registry  *prometheus.Registry
	apiErrors prometheus.Counter
	applies   *prometheus.CounterVec
	duration  prometheus.Histogram
}

const space = "patchbay_node"

func newMetrics(a *Agent) *metrics {
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		apiErrors: prometheus.NewCounter(prometheus.CounterOpts{Namespace: space, Name: "api_errors_total", Help: "Requests that the API server did not answer as it should."}),
		applies:   prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: space, Name: "applies_total", Help: "Comparisons of the kernel with the planned state."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: space, Name: "apply_duration_seconds", Help: "Time of such a comparison.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8), //nolint:mnd // 1 ms to 16 s
		}),
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: space, Name: name, Help: help}, value)
	}
	m.registry.MustRegister(m.apiErrors, m.applies, m.duration, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		gauge("peers", "Other nodes of the mesh.", func() float64 { peers, _ := a.size(); return float64(peers) }),
		gauge("routes", "Routes to blocks of other nodes.", func() float64 { _, routes := a.size(); return float64(routes) }),
		gauge("last_sync_timestamp_seconds", "When the API server last told something of the Nodes; 0: never.", a.lastSync),
		gauge("ready", "1 if pods can start on this node.", func() float64 { return one(a.Ready() == nil) }),
		problemCollector{a})
	return m
}

// register adds the metrics of network policies.
func (m *metrics) register(n *networkPolicy) {
	m.registry.MustRegister(n.status.programs, n.status.duration, n.status.transaction, n.status.errors, n.status.touches, policyCollector{n})
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func (a *Agent) size() (peers, routes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peers, a.routes
}

func (a *Agent) lastSync() float64 {
	if synced := a.mirror.view().synced; !synced.IsZero() {
		return float64(synced.Unix())
	}
	return 0
}

func (m *metrics) applied(took time.Duration, err error) {
	result := "success"
	if err != nil {
		result = "failure"
	}
	m.applies.WithLabelValues(result).Inc()
	m.duration.Observe(took.Seconds())
}

// problemCollector counts the current problems by reason.
type problemCollector struct{ a *Agent }

func (problemCollector) desc() *prometheus.Desc {
	return prometheus.NewDesc(space+"_problems", "What is wrong now, with this node and with others.", []string{"reason"}, nil)
}

// Describe implements prometheus.Collector.
func (c problemCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc() }

// Collect implements prometheus.Collector.
func (c problemCollector) Collect(out chan<- prometheus.Metric) {
	for reason, n := range c.a.trouble.count() {
		out <- prometheus.MustNewConstMetric(c.desc(), prometheus.GaugeValue, float64(n), string(reason))
	}
}

// Handler serves /healthz, /readyz and /metrics.
func (a *Agent) Handler() http.Handler {
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
	mux.HandleFunc("/healthz", check(a.Healthy))
	mux.HandleFunc("/readyz", check(a.Ready))
	mux.Handle("/metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}
