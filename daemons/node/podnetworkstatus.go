// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-net/patchbay/daemons/node/networks"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// The agent finds problems of further networks of pods with these reasons. The last one is of pods.
const (
	networksUnfollowed plan.Reason = "PodNetworksNotFollowed"
	networksUnwritten  plan.Reason = "PodNetworksNotWritten"
	networksUnwatched  plan.Reason = "PodNetworksNotWatched"
	networksUnread     plan.Reason = "PodNetworkPlansNotRead"
	networksUntold     plan.Reason = "PodNetworkStatusNotWritten"
	networksUnattached plan.Reason = "PodNetworksNotAttached"
)

const networkSpace = space + "_networks"

// podNetworkStatus says how well pods get further networks: as problems and as metrics.
type podNetworkStatus struct {
	trouble  *trouble
	follows  following
	files    prometheus.Counter
	statuses *prometheus.CounterVec

	mu                    sync.Mutex
	definitions, attached int
	problems              []networks.Problem
}

func newPodNetworkStatus(a *Agent) *podNetworkStatus {
	return &podNetworkStatus{
		trouble: &a.trouble,
		follows: following{trouble: &a.trouble, reason: networksUnfollowed, blind: "further networks of pods", asks: a.metrics.apiErrors},
		files: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: networkSpace, Name: "files_changed_total", Help: "Files of definitions and pods that the agent wrote or removed for ADDs.",
		}),
		statuses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: networkSpace, Name: "statuses_total", Help: "Annotations network-status of pods: written, gone with their pod, refused by the API server, or failed and to be repeated.",
		}, []string{"result"}),
	}
}

// wrote stores what came of writing the files.
func (s *podNetworkStatus) wrote(changed int, err error) {
	s.files.Add(float64(changed))
	s.unwritten(err)
}

func (s *podNetworkStatus) unwritten(err error) { s.trouble.set(networksUnwritten, err) }
func (s *podNetworkStatus) unwatched(err error) { s.trouble.set(networksUnwatched, err) }
func (s *podNetworkStatus) untold(err error)    { s.trouble.set(networksUntold, err) }

// unread stores why plans of pods cannot be read.
func (s *podNetworkStatus) unread(err error) {
	if err != nil {
		err = fmt.Errorf("%w: the status of these pods is not written; the pod's DEL or patchbay gc removes what is left of it", err)
	}
	s.trouble.set(networksUnread, err)
}

// written counts a request for a status.
func (s *podNetworkStatus) written(result string) { s.statuses.WithLabelValues(result).Inc() }

// judged stores how many definitions there are, how many pods are attached, and which cannot be.
func (s *podNetworkStatus) judged(definitions, attached int, problems []networks.Problem) {
	slices.SortFunc(problems, func(a, b networks.Problem) int { return a.Pod.Compare(&b.Pod) })
	s.mu.Lock()
	changed := !slices.Equal(problems, s.problems)
	s.definitions, s.attached, s.problems = definitions, attached, problems
	s.mu.Unlock()
	if changed {
		s.trouble.changed()
	}
}

// topics returns the Events on pods. The UID makes `kubectl describe pod` show them.
func (s *podNetworkStatus) topics() map[topic]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []policy.Problem
	uids := map[string]string{}
	for _, p := range s.problems {
		name := p.Pod.Namespace + "/" + p.Pod.Name
		uids[name] = p.Pod.UID
		list = append(list, policy.Problem{Object: kindPod + " " + name, Text: p.Text})
	}
	out := map[topic]string{}
	for about, text := range told(networksUnattached, list) {
		about.uid = uids[about.namespace+"/"+about.name]
		out[about] = text
	}
	return out
}

// podNetworkCollector computes metrics each time that somebody reads them.
type podNetworkCollector struct{ *podNetworks }

// Describe implements prometheus.Collector. It describes nothing, so the values are not checked.
func (podNetworkCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c podNetworkCollector) Collect(out chan<- prometheus.Metric) {
	if !c.choices.On {
		return
	}
	gauge := func(name, help string, v int) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(networkSpace+"_"+name, help, nil, nil), prometheus.GaugeValue, float64(v))
	}
	s := c.status
	s.mu.Lock()
	definitions, attached, problems := s.definitions, s.attached, len(s.problems)
	s.mu.Unlock()
	gauge("definitions", "NetworkAttachmentDefinitions of the cluster.", definitions)
	gauge("attached_pods", "Pods of this node that are attached to further networks.", attached)
	gauge("problems", "Pods of this node that cannot be attached to their further networks, or whose status the API server refuses.", problems)
	for _, l := range c.cluster.Losses() {
		d := prometheus.NewDesc(networkSpace+"_not_followed_since_timestamp_seconds", "Since when changes of a kind of objects are not seen.", []string{"kind"}, nil)
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(l.Since.Unix()), l.Kind.String())
	}
}
