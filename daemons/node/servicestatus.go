// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/daemons/node/services"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
	svc "github.com/patchbay-net/patchbay/internal/services"
)

// The agent finds problems of Services with these reasons. The last one is kube-proxy's.
const (
	servicesFailed     plan.Reason = "ServicesFailed"
	servicesBroken     plan.Reason = "ServicesBroken"
	servicesUnfollowed plan.Reason = "ServicesNotFollowed"
	servicesChanged    plan.Reason = "ServicesChanged"
	servicesUnwatched  plan.Reason = "ServicesNotWatched"
	servicesUnsaved    plan.Reason = "ServicesNotSaved"
	affinityStale      plan.Reason = "ServiceAffinityStale"
	addressesUnwatched plan.Reason = "AddressesNotWatched"
	addressesUnseen    plan.Reason = "AddressesNotRead"
	healthzFailed      plan.Reason = "ServiceHealthzFailed"
	serviceBroken      plan.Reason = "ServiceBroken"
	checkFailed        plan.Reason = "FailedToStartServiceHealthcheck"
)

const serviceSpace = space + "_services"

// serviceStatus says how well Services are in force: as problems and as metrics.
type serviceStatus struct {
	trouble *trouble
	self    string
	cluster *services.Cluster

	programCounts
	latency  prometheus.Histogram
	follows  following
	disputes disputes

	mu   sync.Mutex
	at   time.Time                         // when the last program came into force
	deaf map[netip.AddrPort]policy.Problem // where health checks of Services are not served
}

func newServiceStatus(a *Agent) *serviceStatus {
	return &serviceStatus{
		trouble: &a.trouble, self: a.opts.Node, deaf: make(map[netip.AddrPort]policy.Problem),
		programCounts: countPrograms(serviceSpace, "Services", "kernel"),
		follows:       following{trouble: &a.trouble, reason: servicesUnfollowed, blind: "Services", asks: a.metrics.apiErrors},
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: serviceSpace, Name: "network_programming_duration_seconds", Buckets: latencyBuckets(),
			Help: "Time from a change of a Service or a pod, by the clock of the API server's controllers, until its endpoints are in force here.",
		}),
	}
}

// latencyBuckets are those of kube-proxy's metric (k8s.io/kubernetes/pkg/proxy/metrics), and smaller ones before.
func latencyBuckets() []float64 {
	return slices.Concat([]float64{0.025, 0.05, 0.1}, prometheus.LinearBuckets(0.25, 0.25, 2), //nolint:mnd // seconds
		prometheus.LinearBuckets(1, 1, 59), prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7)) //nolint:mnd // seconds
}

// made stores the result of a program.
func (s *serviceStatus) made(took time.Duration, err error) {
	s.count(took, map[string]error{"kernel": err})
	s.failed(err)
	s.tell()
}

// programmed stores when changes happened that are in force now.
func (s *serviceStatus) programmed(triggers []time.Time) {
	s.mu.Lock()
	s.at = time.Now()
	s.mu.Unlock()
	for _, at := range triggers {
		s.latency.Observe(time.Since(at).Seconds())
	}
}

// updated returns when the last program came into force.
func (s *serviceStatus) updated() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// failed tells a failure apart from programs.
func (s *serviceStatus) failed(err error) { s.trouble.set(servicesFailed, err) }

// These tell that a part of the work fails, or works again.
func (s *serviceStatus) unwatched(err error)          { s.trouble.set(servicesUnwatched, err) }
func (s *serviceStatus) addressesUnwatched(err error) { s.trouble.set(addressesUnwatched, err) }
func (s *serviceStatus) unseen(err error)             { s.trouble.set(addressesUnseen, err) }
func (s *serviceStatus) unserved(err error)           { s.trouble.set(healthzFailed, err) }
func (s *serviceStatus) unsettled(err error)          { s.trouble.set(affinityStale, err) }

func (s *serviceStatus) unsaved(err error) {
	if err != nil {
		err = fmt.Errorf("save Services: %w: after a reboot they would work only with the API server", err)
	}
	s.trouble.set(servicesUnsaved, err)
}

// unchecked notes why the health check of a Service is not served at an address, or that it is.
func (s *serviceStatus) unchecked(at netip.AddrPort, name svc.Name, err error) {
	s.mu.Lock()
	if delete(s.deaf, at); err != nil {
		s.deaf[at] = policy.Problem{Object: kindService + " " + name.String(), Text: err.Error()}
	}
	s.mu.Unlock()
	s.tell()
}

// touched counts a change of another program.
func (s *serviceStatus) touched() {
	s.touches.Inc()
	s.disputes.note()
	s.tell()
}

// tell reports the problems that last until somebody corrects them.
func (s *serviceStatus) tell() {
	var texts []string
	broken, deaf := s.broken()
	for _, p := range slices.Concat(broken, deaf) {
		texts = append(texts, p.String())
	}
	s.trouble.set(servicesBroken, firstOf(texts))
	var fought error
	if s.disputes.lasts() {
		fought = errors.New("another program changes the table inet " + nft.ServicesTable + " again and again, and each time the agent puts it back: look which one with `nft monitor`; " +
			"only one agent may run on a node")
	}
	s.trouble.set(servicesChanged, fought)
}

// broken returns the objects that cannot be read as a whole, and the Services whose health check cannot be served.
func (s *serviceStatus) broken() (unread, deaf []policy.Problem) {
	for _, p := range s.cluster.Problems() {
		unread = append(unread, policy.Problem{Object: p.Object, Text: p.Text})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range slices.SortedFunc(maps.Keys(s.deaf), netip.AddrPort.Compare) {
		deaf = append(deaf, s.deaf[at])
	}
	return unread, deaf
}

// serviceCollector computes metrics of Services each time that somebody reads them.
type serviceCollector struct{ *serviceProxy }

// Describe implements prometheus.Collector. It describes nothing, so the values are not checked.
func (serviceCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c serviceCollector) Collect(out chan<- prometheus.Metric) {
	if !c.choices.On {
		return
	}
	gauge := func(name, help string, v float64, labels ...string) {
		d := prometheus.NewDesc(serviceSpace+"_"+name, help, labels[:len(labels)/2], nil)
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels[len(labels)/2:]...)
	}
	for _, l := range c.cluster.Losses() {
		gauge("not_followed_since_timestamp_seconds", "Since when changes of a kind of objects are not seen.", float64(l.Since.Unix()), "kind", l.Kind.String())
	}
	number, endpoints := c.cluster.Count()
	gauge("services", "Services of the cluster.", float64(number))
	gauge("endpoints", "Endpoints of their slices.", float64(endpoints))
	gauge("problems", "Objects of the cluster that cannot be read as a whole.", float64(len(c.cluster.Problems())))
	gauge("program_running_seconds", "For how long the agent has been putting a program in force; 0: it is not.", c.busy.running().Seconds())
	pending := 0.0
	if since := c.cluster.Pending(); !since.IsZero() {
		pending = time.Since(since).Seconds()
	}
	gauge("pending_seconds", "For how long the oldest change waits that is not in force; 0: none waits.", pending)
}
