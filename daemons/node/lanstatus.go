// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-net/patchbay/daemons/node/lan"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// The agent finds problems of addresses of load balancers with these reasons.
const (
	lanUnfollowed  plan.Reason = "LoadBalancersNotFollowed"
	lanFailed      plan.Reason = "LoadBalancersFailed"
	lanUnrenewed   plan.Reason = "LoadBalancerLeaseNotRenewed"
	lanPools       plan.Reason = "LoadBalancerPoolsWrong"
	lanUnanswered  plan.Reason = "LoadBalancersNotAnswered"
	lanUnwatched   plan.Reason = "LoadBalancerLinksNotWatched"
	lanConflict    plan.Reason = "LoadBalancerAddressConflict"
	lanServiceFail plan.Reason = "LoadBalancerAddressFailed"
)

const lanSpace = space + "_load_balancers"

// conflictLasts is how long a conflict is reported after it was last seen.
const conflictLasts = 5 * time.Minute

// lanStatus says how well Services have addresses: as problems and as metrics.
type lanStatus struct {
	trouble  *trouble
	follows  following
	failures *prometheus.CounterVec

	mu        sync.Mutex
	unserved  []policy.Problem     // Services
	deaf      map[string]error     // links on which this node does not answer
	unlink    error                // no link is known
	conflicts map[string]time.Time // what was seen when
}

func newLANStatus(a *Agent) *lanStatus {
	return &lanStatus{
		trouble: &a.trouble, deaf: make(map[string]error), conflicts: make(map[string]time.Time),
		follows: following{trouble: &a.trouble, reason: lanUnfollowed, blind: "load balancers' addresses", asks: a.metrics.apiErrors},
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: lanSpace, Name: "errors_total", Help: "Requests about addresses that failed: renew is the Lease of this node, and write all others.",
		}, []string{"part"}),
	}
}

// acted stores what came of requests to the API server. That another node was faster is no failure.
func (s *lanStatus) acted(err error) {
	if errors.Is(err, lan.ErrConflict) {
		err = nil
	}
	if err != nil {
		s.failures.WithLabelValues("write").Inc()
	}
	s.trouble.set(lanFailed, err)
}

// renewed stores what came of a renewal.
func (s *lanStatus) renewed(err error) {
	if err != nil {
		s.failures.WithLabelValues("renew").Inc()
		err = fmt.Errorf("%w: without it this node answers for no address of a load balancer", err)
	}
	s.trouble.set(lanUnrenewed, err)
}

func (s *lanStatus) unwatched(err error) { s.trouble.set(lanUnwatched, err) }

// unheard notes why this node does not answer on a link, or that it does.
func (s *lanStatus) unheard(link string, err error) {
	s.note(func() {
		if delete(s.deaf, link); err != nil {
			s.deaf[link] = err
		}
	})
}

// unlinked notes why no link is known on which this node could answer.
func (s *lanStatus) unlinked(err error) { s.note(func() { s.unlink = err }) }

func (s *lanStatus) note(do func()) {
	s.mu.Lock()
	do()
	errs := []error{s.unlink}
	for _, link := range slices.Sorted(maps.Keys(s.deaf)) {
		errs = append(errs, s.deaf[link])
	}
	s.mu.Unlock()
	s.trouble.set(lanUnanswered, errors.Join(errs...))
}

// conflicted notes that another host has an address.
func (s *lanStatus) conflicted(a netip.Addr, by net.HardwareAddr) {
	s.mu.Lock()
	s.conflicts[fmt.Sprintf("the host with the Ethernet address %s has %s, too", by, a)] = time.Now()
	s.mu.Unlock()
	s.tellConflicts()
}

func (s *lanStatus) tellConflicts() {
	s.mu.Lock()
	maps.DeleteFunc(s.conflicts, func(_ string, at time.Time) bool { return time.Since(at) > conflictLasts })
	texts := slices.Sorted(maps.Keys(s.conflicts))
	s.mu.Unlock()
	var err error
	if first := firstOf(texts); first != nil {
		err = fmt.Errorf("%w: take the address from that host, or from the pool", first)
	}
	s.trouble.set(lanConflict, err)
}

// tell reports what an operator must correct.
func (s *lanStatus) tell(p lan.Plan) {
	var pools []string
	var list []policy.Problem
	for _, problem := range p.Problems {
		if problem.Service.Name == "" {
			pools = append(pools, problem.Text)
			continue
		}
		list = append(list, policy.Problem{Object: kindService + " " + problem.Service.String(), Text: problem.Text})
	}
	s.mu.Lock()
	changed := !slices.Equal(list, s.unserved)
	s.unserved = list
	s.mu.Unlock()
	s.trouble.set(lanPools, firstOf(pools))
	if s.tellConflicts(); changed {
		s.trouble.changed()
	}
}

// broken returns the Services that get no address, or not the one that they request.
func (s *lanStatus) broken() []policy.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unserved
}

// lanCollector computes metrics of addresses each time that somebody reads them.
type lanCollector struct{ *loadBalancers }

// Describe implements prometheus.Collector. It describes nothing, so the values are not checked.
func (lanCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c lanCollector) Collect(out chan<- prometheus.Metric) {
	if !c.choices.On {
		return
	}
	value := func(kind prometheus.ValueType, name, help string, v float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(lanSpace+"_"+name, help, nil, nil), kind, v)
	}
	p, taken := c.keeper.Status()
	answered, announced := c.counts()
	value(prometheus.GaugeValue, "owned", "Addresses that this node owns.", float64(p.Owned))
	value(prometheus.GaugeValue, "answered_for", "Addresses for which this node answers.", float64(len(p.Announce)))
	value(prometheus.GaugeValue, "problems", "Services and pools that do not get what they ask for.", float64(len(p.Problems)))
	value(prometheus.CounterValue, "taken_total", "Addresses that this node has made its own.", float64(taken))
	value(prometheus.CounterValue, "answers_total", "Requests of ARP and neighbour discovery that this node has answered.", float64(answered))
	value(prometheus.CounterValue, "announcements_total", "Gratuitous ARP messages and unsolicited neighbour advertisements.", float64(announced))
	for _, l := range c.cluster.Losses() {
		d := prometheus.NewDesc(lanSpace+"_not_followed_since_timestamp_seconds", "Since when changes of a kind of objects are not seen.", []string{"kind"}, nil)
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(l.Since.Unix()), l.Kind.String())
	}
}
