// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-net/patchbay/daemons/internal/fabric/health"
)

// metrics are the values that the agent serves at /metrics, beside those of every agent.
type metrics struct {
	*health.Health
	apiErrors prometheus.Counter
}

const space = "patchbay_" + Service

func newMetrics(a *Agent) *metrics {
	m := &metrics{
		Health: health.New(health.Options{
			Service: Service, Unready: errNoState, Restart: "delete its pod to restart it",
			Hangs: func() error { return cmp.Or(a.policy.hangs(), a.services.hangs()) }, Heard: func() time.Time { return a.mirror.view().synced }, Problems: a.trouble.reasons,
		}),
		apiErrors: prometheus.NewCounter(prometheus.CounterOpts{Namespace: space, Name: "api_errors_total", Help: "Requests that the API server did not answer as it should."}),
	}
	m.Register(m.apiErrors)
	return m
}

// watch adds the metrics of network policies and Services.
func (m *metrics) watch(n *networkPolicy, p *serviceProxy) {
	m.Register(append(n.status.collectors(), policyCollector{n})...)
	m.Register(append(p.status.collectors(), p.status.latency, serviceCollector{p})...)
}

var errNoState = errors.New("nothing is known of this node yet: the API server has not answered, and no earlier answer is saved")

// Ready returns why pods cannot start on this node, or nil if they can.
func (a *Agent) Ready() error { return a.metrics.Ready() }

// Healthy returns an error if the agent hangs.
func (a *Agent) Healthy() error { return a.metrics.Healthy() }

// Handler serves /healthz, /readyz and /metrics.
func (a *Agent) Handler() http.Handler { return a.metrics.Handler() }
