// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// events writes an Event on this Node for each of its problems, on each policy that pods of this node
// have and that is not understood, and on each Service that cannot work as a whole. It repeats an Event while the problem lasts.
type events struct {
	signal chan struct{}
	sent   map[topic]sent
}

// topic is what an Event is about: an object, such as a policy, or this Node, which is empty.
type topic struct {
	kind, namespace, name string
	uid                   string // "" if no reader of Events asks for it
	reason                plan.Reason
}

// sent is the last Event of a topic.
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
	longName    = 230              // bytes of an object's name in the name of an Event, which has at most 253
	mostTold    = 100              // objects of a kind of problem: a user may write as many as he likes
	mostNew     = 10               // Events on the objects of one namespace within newEvent: each is a request to the API server
)

// wake forgets which Events were sent, and returns the function that makes the loop of tend read the problems at once.
func (e *events) wake() func() {
	e.signal, e.sent = make(chan struct{}, 1), map[topic]sent{}
	return func() { resident.Signal(e.signal) }
}

// due returns the topics that need an Event now, and forgets those that are over. The objects of a namespace get
// mostNew Events within newEvent, the others later.
func (e *events) due(now map[topic]string, at time.Time) (list []topic) {
	for about, text := range now {
		last, ever := e.sent[about]
		pause := repeatEvent
		if last.text != text {
			pause = newEvent
		}
		if !ever || at.Sub(last.at) >= pause {
			list = append(list, about)
		}
	}
	maps.DeleteFunc(e.sent, func(about topic, last sent) bool { return now[about] == "" && at.Sub(last.at) >= newEvent })
	slices.SortFunc(list, func(a, b topic) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	spent := map[string]int{}
	for about, last := range e.sent {
		if at.Sub(last.at) < newEvent {
			spent[about.of()]++
		}
	}
	return slices.DeleteFunc(list, func(about topic) bool {
		spent[about.of()]++
		return about.kind != "" && spent[about.of()] > mostNew
	})
}

// of returns whose topic it is: a namespace's, the cluster's or this Node's.
func (t topic) of() string {
	if t.namespace != "" {
		return t.namespace
	}
	return "/" + t.kind // is no namespace
}

// tend writes Events until ctx ends. If the API server does not accept an Event, tend tries again
// later.
func (e *events) tend(ctx context.Context, a *Agent) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		now := a.topics()
		for _, about := range e.due(now, time.Now()) {
			if !e.tell(ctx, a, about, now[about]) {
				break
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.signal:
		}
	}
}

// tell writes one Event. It reports whether the API server can be reached. The server may refuse an Event, as in a
// namespace that is being deleted or has a quota. That must not delay other Events; tend tries the refused one again
// as a new one.
func (e *events) tell(ctx context.Context, a *Agent, about topic, text string) bool {
	err := a.emit(ctx, about, text)
	switch {
	case err == nil:
		e.sent[about] = sent{text, time.Now()}
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		e.sent[about] = sent{at: time.Now()}
	default:
		return false
	}
	return true
}

// topics returns the topics of the Events to write, with their texts.
func (a *Agent) topics() map[topic]string {
	out := topics(a.trouble.mine(), a.policy.status.brokenPolicies())
	unread, deaf := a.services.status.broken()
	maps.Copy(out, told(serviceBroken, unread))
	maps.Copy(out, told(checkFailed, deaf))
	maps.Copy(out, told(lanServiceFail, a.balancer.status.broken()))
	maps.Copy(out, a.networks.status.topics())
	return out
}

func topics(mine map[plan.Reason]string, broken []policy.Problem) map[topic]string {
	out := map[topic]string{}
	for reason, text := range mine {
		out[topic{reason: reason}] = text
	}
	maps.Copy(out, told(policyBroken, broken))
	return out
}

// told returns what is wrong with at most mostTold objects. Each namespace gets the same share: a user with many
// broken objects must not silence others.
func told(reason plan.Reason, broken []policy.Problem) map[topic]string {
	out := map[topic]string{}
	texts, namespaces := map[topic]string{}, map[string][]topic{}
	for _, p := range broken {
		about := topicOf(reason, p)
		if texts[about] == "" {
			namespaces[about.of()] = append(namespaces[about.of()], about)
		}
		texts[about] = join(texts[about], p.Text)
	}
	for i := 0; len(out) < min(len(texts), mostTold); i++ {
		for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
			if list := namespaces[namespace]; i < len(list) && len(out) < mostTold {
				out[list[i]] = texts[list[i]]
			}
		}
	}
	return out
}

func topicOf(reason plan.Reason, p policy.Problem) topic {
	about := topic{reason: reason}
	about.kind, about.name, _ = strings.Cut(p.Object, " ")
	if namespace, name, namespaced := strings.Cut(about.name, "/"); namespaced {
		about.namespace, about.name = namespace, name
	}
	return about
}

// emit writes one Event. It only counts a failure, because the agent reports an unreachable API
// server anyway. If another agent has written the Event, that is no failure.
func (a *Agent) emit(ctx context.Context, about topic, text string) error {
	ctx, cancel := context.WithTimeout(ctx, eventTime)
	defer cancel()
	api, err := a.api.get()
	if err == nil {
		err = api.CreateEvent(ctx, a.event(about, text, time.Now()))
	}
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		a.metrics.apiErrors.Inc()
	}
	return err
}

func (a *Agent) event(about topic, text string, now time.Time) *corev1.Event {
	at, object := metav1.NewTime(now), about.object()
	name := fmt.Sprintf("%s.%x", a.opts.Node, now.UnixNano())
	if about.kind == "" {
		object = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.opts.Node, UID: types.UID(a.mirror.uid())}
	} else {
		name = about.eventName(text, now)
	}
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: cmp.Or(object.Namespace, metav1.NamespaceDefault), Name: name},
		InvolvedObject: object,
		Type:           corev1.EventTypeWarning, Reason: string(about.reason), Message: short(text),
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source:              corev1.EventSource{Component: "patchbayd", Host: a.opts.Node},
		ReportingController: plan.AnnotationPrefix + "patchbayd", ReportingInstance: a.opts.Node,
	}
}

// These are kinds of objects with problems, besides those of package policy.
const (
	kindService = "service"
	kindPod     = "pod"
)

// object returns the object that an Event is about.
func (t topic) object() corev1.ObjectReference {
	names := map[string][2]string{
		kindService: {"v1", "Service"}, kindPod: {"v1", "Pod"}, "node": {"v1", "Node"}, "endpointslice": {"discovery.k8s.io/v1", "EndpointSlice"}, "servicecidr": {"networking.k8s.io/v1", "ServiceCIDR"},
		policy.KindNetworkPolicy:        {"networking.k8s.io/v1", "NetworkPolicy"},
		policy.KindClusterNetworkPolicy: {"policy.networking.k8s.io/" + clusterVersion, "ClusterNetworkPolicy"},
	}[t.kind]
	return corev1.ObjectReference{APIVersion: names[0], Kind: names[1], Namespace: t.namespace, Name: t.name, UID: types.UID(t.uid)}
}

// eventName returns a name that every agent gives the Event of an object within an hour, so that only the first
// of them writes it.
func (t topic) eventName(text string, now time.Time) string {
	h := fnv.New64a()
	fmt.Fprint(h, t, text, now.Truncate(repeatEvent).Unix()) //nolint:errcheck // a hash takes all
	return fmt.Sprintf("%s.%016x", strings.TrimRight(t.name[:min(len(t.name), longName)], ".-"), h.Sum64())
}

// short cuts a text to the length that an Event may have.
func short(text string) string {
	if runes := []rune(text); len(runes) > longMessage {
		return string(runes[:longMessage]) + "…"
	}
	return text
}
