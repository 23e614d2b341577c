// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/prometheus/client_golang/prometheus"
)

const policySpace = space + "_policy"

func newPolicyStatus(a *Agent) *policyStatus {
	return &policyStatus{
		trouble: &a.trouble, self: a.opts.Node,
		programCounts: countPrograms(policySpace, "network policies", "mirror, kernel or records"),
		follows:       following{trouble: &a.trouble, reason: policyUnfollowed, blind: "network policies", asks: a.metrics.apiErrors},
	}
}

// policyCollector computes metrics of network policies each time that somebody reads them.
type policyCollector struct{ *networkPolicy }

func policyDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(policySpace+"_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector. It describes nothing, so the values are not checked.
func (policyCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c policyCollector) Collect(out chan<- prometheus.Metric) {
	if c.choices.Off {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	lost := policyDesc("not_followed_since_timestamp_seconds", "Since when changes of a kind of objects are not seen.", "kind")
	for _, l := range c.cluster.Losses() {
		gauge(lost, float64(l.Since.Unix()), l.Kind.String())
	}
	c.status.mu.Lock()
	p := programStatus{}
	if c.status.program != nil {
		p = *c.status.program
	}
	c.status.mu.Unlock()
	at := 0.0
	if !p.at.IsZero() {
		at = float64(p.at.Unix())
	}
	gauge(policyDesc("program_timestamp_seconds", "When the program that is in force was made; 0: there is none."), at)
	gauge(policyDesc("program_running_seconds", "For how long the agent has been putting a program in force; 0: it is not."), c.busy.running().Seconds())
	gauge(policyDesc("pods", "Pods of this node, with other containers to which policies apply."), float64(p.pods))
	gauge(policyDesc("selecting", "Policies that select pods of this node."), float64(p.policies))
	gauge(policyDesc("problems", "Objects of the cluster that are not understood, and so close something."), float64(len(p.problems)))
	c.collectDrops(out)
	c.collectTold(out)
}

func (c policyCollector) collectDrops(out chan<- prometheus.Metric) {
	drops, err := c.drops()
	if err != nil {
		c.status.errors.WithLabelValues("drops").Inc()
	}
	packets := policyDesc("dropped_packets_total", "Packets that a policy denied. The policy is empty if the labels of a pod are not known.", "policy", "direction")
	bytes := policyDesc("dropped_bytes_total", "The bytes of these packets.", "policy", "direction")
	for _, d := range drops {
		out <- prometheus.MustNewConstMetric(packets, prometheus.CounterValue, float64(d.Packets), d.Policy, d.Direction.String())
		out <- prometheus.MustNewConstMetric(bytes, prometheus.CounterValue, float64(d.Bytes), d.Policy, d.Direction.String())
	}
}

func (c policyCollector) collectTold(out chan<- prometheus.Metric) {
	if c.told == nil {
		return
	}
	stats := c.told.Stats()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	told := dropDesc("events_total", "Dropped packets that were told, one of each flow in ten seconds.", "direction", "cause")
	for k, n := range stats.Told {
		count(told, n, k.Direction, k.Cause)
	}
	counted := dropDesc("packets_total", "Packets that were dropped since the agent began to read them.", "direction", "cause")
	for k, n := range stats.Counted {
		count(counted, n, k.Direction, k.Cause)
	}
	lost := dropDesc("events_lost_total", "Of the packets that the kernel told, those that did not come to the agent (kernel) or to a client that was too slow (client).", "where")
	count(lost, stats.Lost, "kernel")
	count(lost, stats.Missed, "client")
	count(dropDesc("events_unexplained_total", "Told packets that no policy denies that the agent knows."), stats.Unexplained)
}

func dropDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(space+"_drop_"+name, help, labels, nil)
}
