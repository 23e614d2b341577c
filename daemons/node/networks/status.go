// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"fmt"
	"maps"
	"time"

	"github.com/patchbay-net/patchbay/internal/npwg"
)

// Status is the annotation network-status that a pod should have.
type Status struct {
	Pod  Pod
	Text string
}

// Statuses returns the statuses of the pods whose networks are attached. plans are in the order in which they were written: a pod whose
// sandbox was made again has several plans, and only the last one counts. A plan belongs to the pod that has its UID. Without a UID
// it belongs to none, because a pod of the same name may have replaced its pod.
func Statuses(plans []*npwg.Plan, pods []Pod) (list []Status, errs []error) {
	last := make(map[npwg.Pod]*npwg.Plan)
	for _, plan := range plans {
		last[plan.Pod] = plan
	}
	for _, pod := range pods {
		plan := last[npwg.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.RuntimeUID}]
		if plan == nil || !plan.Complete() || pod.RuntimeUID == "" {
			continue
		}
		text, err := textOf(plan)
		if err != nil {
			errs = append(errs, fmt.Errorf("status of pod %s/%s: %w", pod.Namespace, pod.Name, err))
			continue
		}
		list = append(list, Status{pod, text})
	}
	return list, errs
}

func textOf(plan *npwg.Plan) (string, error) {
	entries, err := plan.Statuses()
	if err != nil {
		return "", err
	}
	return npwg.StatusText(entries)
}

// refusedLasts is how long a status that the API server refused is not written again. The reason may be a rule of the cluster, which can
// change.
const refusedLasts = 10 * time.Minute

// Sent knows what was written to the API server, until the copies of the pods have it, and what it refused. The zero value is ready.
type Sent struct{ of map[string]sent } // by the UID of the API

type sent struct {
	text    string
	refused error
	at      time.Time
}

// Due returns the statuses that must be written now. What another program wrote over a status of ours stays. Due forgets pods
// that are gone.
func (s *Sent) Due(list []Status, pods []Pod, now time.Time) (due []Status) {
	known := make(map[string]bool, len(pods))
	for i := range pods {
		known[pods[i].UID] = true
	}
	maps.DeleteFunc(s.of, func(uid string, _ sent) bool { return !known[uid] })
	for _, status := range list {
		was := s.of[status.Pod.UID]
		if status.Text == status.Pod.Status || status.Text == was.text && (was.refused == nil || now.Sub(was.at) < refusedLasts) {
			continue
		}
		due = append(due, status)
	}
	return due
}

// Note notes that a status was written, or that the API server refused it, for good as it seems.
func (s *Sent) Note(status Status, refused error, now time.Time) {
	if s.of == nil {
		s.of = make(map[string]sent)
	}
	s.of[status.Pod.UID] = sent{status.Text, refused, now}
}

// Refused returns why the API server refused the status of a pod, or nil.
func (s *Sent) Refused(pod *Pod) error { return s.of[pod.UID].refused }
