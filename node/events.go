// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/node/plan"
)

// events writes an Event on this Node for each of its problems, and repeats the Event while the
// problem lasts.
type events struct {
	signal chan struct{}
	sent   map[plan.Reason]sent
}

// sent is the last Event of a reason.
type sent struct {
	text string
	at   time.Time
}

// The API server keeps an Event for an hour, so Events are repeated then. If a problem's text
// changes, its Event is written sooner, but not at each change, to spare the API server.
const (
	repeatEvent = time.Hour
	newEvent    = 5 * time.Minute
	eventTime   = 10 * time.Second // limits one request
	longMessage = 1000             // characters; the API server takes 1024
)

// wake returns the function that makes tend look at the problems.
func (e *events) wake() func() {
	e.signal, e.sent = make(chan struct{}, 1), map[plan.Reason]sent{}
	return func() { resident.Signal(e.signal) }
}

// due returns the reasons that need an Event now.
func (e *events) due(mine map[plan.Reason]string, now time.Time) (list []plan.Reason) {
	for reason, text := range mine {
		last, ever := e.sent[reason]
		pause := repeatEvent
		if last.text != text {
			pause = newEvent
		}
		if !ever || now.Sub(last.at) >= pause {
			list = append(list, reason)
		}
	}
	slices.Sort(list)
	return list
}

// tend writes Events until ctx ends. If the API server does not accept an Event, tend tries again
// later.
func (e *events) tend(ctx context.Context, a *Agent) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		mine := a.trouble.mine()
		for _, reason := range e.due(mine, time.Now()) {
			if a.emit(ctx, reason, mine[reason]) != nil {
				break
			}
			e.sent[reason] = sent{mine[reason], time.Now()}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.signal:
		}
	}
}

// emit writes one Event. It only counts a failure, because the agent reports an unreachable API
// server anyway.
func (a *Agent) emit(ctx context.Context, reason plan.Reason, text string) error {
	ctx, cancel := context.WithTimeout(ctx, eventTime)
	defer cancel()
	api, err := a.api.get()
	if err == nil {
		err = api.CreateEvent(ctx, a.event(reason, text, time.Now()))
	}
	if err != nil {
		a.metrics.apiErrors.Inc()
	}
	return err
}

func (a *Agent) event(reason plan.Reason, text string, now time.Time) *corev1.Event {
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%x", a.opts.Node, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Node", Name: a.opts.Node, UID: types.UID(a.mirror.uid()),
		},
		Type: corev1.EventTypeWarning, Reason: string(reason), Message: short(text),
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source:              corev1.EventSource{Component: "patchbayd", Host: a.opts.Node},
		ReportingController: plan.AnnotationPrefix + "patchbayd", ReportingInstance: a.opts.Node,
	}
}

// short cuts a text to the length that an Event may have.
func short(text string) string {
	if runes := []rune(text); len(runes) > longMessage {
		return string(runes[:longMessage]) + "…"
	}
	return text
}
