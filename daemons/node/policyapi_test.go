// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/patchbay-net/patchbay/daemons/internal/losses"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/policy"
	policymirror "github.com/patchbay-net/patchbay/internal/policy/mirror"
)

// TestPolicyWatchBreaks breaks the watches. What is known stays in force, and the agent says so.
func TestPolicyWatchBreaks(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.policy("closed", forWeb)
	l.start()
	l.awaitJudged(webAddr, true)
	for _, status := range []int{http.StatusInternalServerError, http.StatusUnauthorized, http.StatusForbidden} {
		l.api.say(func(s *apiServer) { s.refuse = status })
		l.api.cut(false)
		l.awaitProblem(policyUnfollowed)
		if !l.judged(webAddr) {
			t.Errorf("%d: the policy is not in force", status)
		}
		l.api.say(func(s *apiServer) { s.refuse = 0; delete(s.kinds.of(policies.NetworkPolicies).objects, "shop/closed") })
		l.await("the list", func() bool { return !l.judged(webAddr) && l.trouble.mine()[policyUnfollowed] == "" })
		l.policy("closed", forWeb)
		l.awaitJudged(webAddr, true)
	}
}

// The agent reports kinds together that fail for the same reason.
func TestLost(t *testing.T) {
	at := time.Unix(1000, 0)
	refused := errors.New("connection refused")
	got := lost("network policies", []losses.Loss{
		{Kind: policies.Pods, Since: at.Add(time.Second), Err: refused}, {Kind: policies.Nodes, Since: at, Err: losses.ErrUnlisted},
		{Kind: policies.Namespaces, Since: at, Err: errors.New("connection refused")}, {Kind: policies.NetworkPolicies, Since: at, Err: errors.New("forbidden")},
	})
	const want = "network policies do not see changes of pods, namespaces since 1970-01-01T00:16:40Z: connection refused\n" +
		"network policies do not see changes of networkpolicies since 1970-01-01T00:16:40Z: forbidden"
	if got == nil || got.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", got, want)
	}
	if err := lost("network policies", nil); err != nil {
		t.Error(err)
	}
}

// An API server that has lost its database has no Node n1. Its lists do not count.
func TestPolicyOfAnEmptyServer(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.policy("closed", forWeb)
	l.start()
	l.awaitJudged(webAddr, true)
	l.api.say(func(s *apiServer) {
		s.omit = func(string) bool { return true }
		for _, k := range s.kinds {
			k.objects = map[string]string{}
		}
	})
	l.api.cut(false)
	l.awaitProblem(policyUnfollowed)
	time.Sleep(3 * collect.Longest)
	if !l.judged(webAddr) {
		t.Error("the policy went with an empty list")
	}
	l.api.say(func(s *apiServer) { s.omit = nil })
	l.awaitJudged(webAddr, false)
}

// TestPolicyPages uses servers that make pages, and do not send all objects in a watch. This is no failure.
func TestPolicyPages(t *testing.T) {
	t.Run("before Kubernetes 1.32", func(t *testing.T) { policyPages(t, func(k *jsonKind) { k.noInit = true }) })
	t.Run("with an old etcd", func(t *testing.T) { policyPages(t, func(k *jsonKind) { k.oldEtcd = true }) })
}

func policyPages(t *testing.T, change func(*jsonKind)) {
	l := newPolicyLab(t)
	l.api.say(func(s *apiServer) {
		for _, k := range s.kinds {
			change(k)
		}
	})
	for i := range 2*pageSize + 1 {
		l.pod("n2", fmt.Sprint("p", i), "", fmt.Sprintf("10.244.2.%d", i%250))
	}
	l.pod("n1", "web-0", "app=web", webAddr)
	l.policy("closed", forWeb)
	l.start()
	l.awaitJudged(webAddr, true)
	l.api.say(func(s *apiServer) {
		if n := s.kinds.of(policies.Pods).lists; n != 3 {
			t.Errorf("%d pages", n)
		}
	})
	l.policy("closed", `{"podSelector":{"matchLabels":{"app":"db"}}}`)
	l.awaitJudged(webAddr, false)
	if problems := l.trouble.problems.All(); len(problems) > 0 {
		t.Error(problems)
	}
	if page := httpRecorder(l.Handler(), "/metrics"); !strings.Contains(page, "\npatchbay_node_api_errors_total 0\n") {
		t.Error("requests failed")
	}
}

// TestPolicyWithoutCRD starts before the CustomResourceDefinition exists, and sees it come and go.
func TestPolicyWithoutCRD(t *testing.T) {
	l := newPolicyLab(t)
	cluster := l.kind(policies.ClusterNetworkPolicies)
	l.api.say(func(*apiServer) { cluster.absent = true })
	l.pod("n1", "web-0", "app=web", webAddr)
	l.pod("n1", "db-0", "app=db", nextAddr)
	l.policy("closed", forWeb)
	l.start()
	l.awaitJudged(webAddr, true)
	if problems := l.trouble.problems.All(); len(problems) > 0 || l.judged(nextAddr) {
		t.Error(problems)
	}
	cluster.put(`{"metadata":{"name":"all"},"spec":{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}}`)
	l.api.say(func(*apiServer) { cluster.absent = false })
	l.awaitJudged(nextAddr, true)
	l.api.say(func(*apiServer) { cluster.absent = true })
	l.api.cut(false)
	l.awaitJudged(nextAddr, false)
	l.await("no problem", func() bool { return l.trouble.mine()[policyUnfollowed] == "" })
}

// TestPolicyWithNewCRD installs the CustomResourceDefinition while the agent runs. The agent does not wait until its
// next regular check.
func TestPolicyWithNewCRD(t *testing.T) {
	l := newPolicyLab(t)
	l.absent = time.Hour
	cluster, definitions := l.kind(policies.ClusterNetworkPolicies), l.api.kinds[definitionsPath]
	l.api.say(func(*apiServer) { cluster.absent = true })
	l.pod("n1", "web-0", "app=web", webAddr)
	l.pod("n1", "db-0", "app=db", nextAddr)
	l.policy("closed", forWeb)
	l.start()
	l.awaitJudged(webAddr, true)
	cluster.put(`{"metadata":{"name":"all"},"spec":{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}}`)
	const head = `{"metadata":{"name":"clusternetworkpolicies.policy.networking.k8s.io"},"spec":{"versions":[{"name":"v1alpha1","served":true},{"name":"v1alpha2","served":%v}]},"status":{"conditions":[{"type":"Established","status":%q}]}}`
	definitions.put(fmt.Sprintf(head, true, "False"))
	definitions.put(fmt.Sprintf(head, false, "True"))
	time.Sleep(2 * settle)
	if l.judged(nextAddr) {
		t.Fatal("a kind that is not served has objects")
	}
	l.api.say(func(*apiServer) { cluster.absent = false })
	definitions.put(fmt.Sprintf(head, true, "True"))
	l.awaitJudged(nextAddr, true)
}

// With the default of its own namespace, a pod is judged without any policy.
func TestPolicyDefault(t *testing.T) {
	l := newPolicyLab(t)
	l.namespace("shop", "kubernetes.io/metadata.name=shop")
	l.pod("n1", "web-0", "app=web", webAddr)
	l.start(func(o *Options) { o.NetworkPolicy.OwnNamespace = true })
	l.awaitJudged(webAddr, true)
	if side := l.decision(policymirror.Pod{Namespace: "shop", Name: "new"}); len(side.Chains) == 0 {
		t.Errorf("an ADD decides %+v", side)
	}
	l.stop()
	l.start()
	l.awaitJudged(webAddr, false)
}

// events returns about what the Events in a namespace are.
func (l *policyLab) events(namespace string) string {
	var about []string
	l.api.say(func(s *apiServer) {
		for _, e := range s.events {
			if o := e.InvolvedObject; e.Namespace == namespace {
				about = append(about, o.Kind+" "+o.Namespace+"/"+o.Name)
			}
		}
	})
	return strings.Join(about, ", ")
}

// The agents of all nodes give the Event of a policy one name for an hour, so that it is written once.
func TestEventOfAPolicyIsWrittenOnce(t *testing.T) {
	one, two := newPolicyLab(t), &Agent{opts: Options{Settings: plan.Settings{Node: "n2"}}}
	one.start()
	broken := policy.Problem{Object: "networkpolicy shop/" + strings.Repeat("x.", 126), Text: "unknown field"}
	for about, text := range topics(nil, []policy.Problem{broken, {Object: "clusternetworkpolicy all", Text: "tier"}}) {
		now := time.Now().Truncate(time.Hour)
		e, same, later := one.Agent.event(about, text, now), two.event(about, text, now.Add(59*time.Minute)), two.event(about, text, now.Add(time.Hour))
		if e.Name != same.Name || e.Name == later.Name || len(validation.IsDNS1123Subdomain(e.Name)) > 0 {
			t.Errorf("%s, %s, %s", e.Name, same.Name, later.Name)
		}
		for range 2 {
			if err := one.emit(t.Context(), about, text); err != nil {
				t.Error(err)
			}
		}
	}
	if got := one.events("default"); got != "ClusterNetworkPolicy /all" {
		t.Error(got)
	}
}

// If a namespace accepts no Events, the Events of other namespaces are still written.
func TestEventsOfOthersAreWritten(t *testing.T) {
	l := newPolicyLab(t)
	l.api.ending = "bank"
	l.start()
	e := events{sent: map[topic]sent{}}
	now := topics(nil, []policy.Problem{{Object: "networkpolicy bank/a", Text: "unknown field"}, {Object: "networkpolicy shop/b", Text: "unknown field"}})
	for _, about := range e.due(now, time.Now()) {
		if !e.tell(t.Context(), l.Agent, about, now[about]) {
			t.Errorf("after the Event on %s, no other is tried", about.name)
			break
		}
	}
	if got := l.events("shop"); got != "NetworkPolicy shop/b" {
		t.Errorf("Events on %q", got)
	}
	if again := e.due(now, time.Now().Add(newEvent)); len(again) != 1 || again[0].namespace != "bank" {
		t.Errorf("tried again: %v", again)
	}
}

// A user with many broken policies neither silences others nor keeps the API server busy. Each of his policies gets an
// Event, a few at a time.
func TestEventsOfManyPolicies(t *testing.T) {
	var broken []policy.Problem
	for i := range mostTold {
		broken = append(broken, policy.Problem{Object: fmt.Sprintf("networkpolicy bank/p%03d", i), Text: "unknown field"})
	}
	broken = append(broken, policy.Problem{Object: "networkpolicy shop/a", Text: "unknown field"}, policy.Problem{Object: "networkpolicy shop/a", Text: "and a bad port"})
	broken = append(broken, policy.Problem{Object: "clusternetworkpolicy all", Text: "tier"})
	e, start := events{sent: map[topic]sent{}}, time.Now()
	written, at := map[string]int{}, start
	for at.Before(start.Add(repeatEvent)) {
		now := topics(map[plan.Reason]string{"A": "a"}, broken)
		if len(now) != mostTold+1 {
			t.Fatalf("%d topics", len(now))
		}
		requests := map[string]int{}
		for range 3 { // policies that come and go signal again and again
			for _, about := range e.due(now, at) {
				requests[about.of()]++
				e.sent[about] = sent{now[about], at}
				written[about.namespace+"/"+about.name]++
			}
		}
		if requests["bank"] > mostNew || at.Equal(start) && (requests["bank"] != mostNew || len(requests) != 4) {
			t.Errorf("after %v: %v", at.Sub(start), requests)
		}
		at = at.Add(newEvent)
	}
	if len(written) != mostTold+1 || written["shop/a"] != 1 || written["/all"] != 1 {
		t.Errorf("in an hour, of %d: %v", mostTold+1, written)
	}
	for i := range 3 * mostNew { // each is another policy
		broken = []policy.Problem{{Object: fmt.Sprintf("networkpolicy bank/q%03d", i), Text: "unknown field"}}
		for _, about := range e.due(topics(nil, broken), at) {
			e.sent[about] = sent{"unknown field", at}
			written["new"]++
		}
	}
	if written["new"] > mostNew {
		t.Errorf("%d Events of new policies at once", written["new"])
	}
}

// If a broken policy closes pods of a node, that node reports a problem.
func TestPolicyBroken(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.pod("n2", "db-0", "app=db", "10.244.2.9")
	l.policy("mine", `{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"newField":1}]}`)
	l.policy("other", `{"podSelector":{"matchLabels":{"app":"db"}},"ingress":[{"newField":1}]}`)
	l.start()
	l.awaitProblem(policyBroken)
	if text := l.trouble.mine()[policyBroken]; !strings.Contains(text, "shop/mine") || strings.Contains(text, "shop/other") {
		t.Error(text)
	}
	l.await("an Event on the policy", func() bool { return l.events("shop") == "NetworkPolicy shop/mine" })
	metrics := httpRecorder(l.Handler(), "/metrics")
	for _, want := range []string{"patchbay_node_policy_problems 2", "patchbay_node_policy_pods 1", "patchbay_node_policy_selecting 1", `patchbay_node_problems{reason="NetworkPolicyBroken"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in\n%s", want, metrics)
		}
	}
	l.policy("mine", forWeb)
	l.await("no problem", func() bool { return l.trouble.mine()[policyBroken] == "" })
}

// An agent that starts while the API server is down has no program. If the kernel has none either, it
// closes the pods by the mirror.
func TestPolicyFlushWithoutAPIServer(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.pod("n1", "db-0", "app=db", nextAddr)
	l.policy("closed", forWeb)
	l.added("web-0", webAddr)
	l.added("db-0", nextAddr)
	l.start()
	l.awaitJudged(webAddr, true)
	l.stop()
	l.api.say(func(s *apiServer) { s.refuse = http.StatusInternalServerError })
	runNFT(t, "flush ruleset")
	l.start()
	l.await("a closed pod", func() bool { return closed(webAddr) })
	l.rest()
	runNFT(t, "flush ruleset")
	l.await("a closed pod again", func() bool { return closed(webAddr) })
	if closed(nextAddr) {
		t.Error("a pod that no policy selects is closed")
	}
	if durable.Locked(policymirror.InForce(l.opts.Paths)) {
		t.Error("ADDs leave former pods to an agent without a program")
	}
	l.api.say(func(s *apiServer) { s.refuse = 0 })
	l.awaitJudged(webAddr, true)
	l.await("the pod is open for its policies", func() bool { return !closed(webAddr) })
}
