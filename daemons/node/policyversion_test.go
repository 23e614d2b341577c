// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/node/policies"
	policymirror "github.com/patchbay-net/patchbay/internal/policy/mirror"
)

const denyAll = `{"metadata":{"name":"all"},"spec":{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}}`

// reversion makes the API server have ClusterNetworkPolicies in another version only, in which it has
// these objects.
func (l *policyLab) reversion(objects ...string) (other *jsonKind) {
	other = l.api.kinds[otherVersionPath]
	l.api.say(func(s *apiServer) { s.kinds.of(policies.ClusterNetworkPolicies).absent = true })
	for _, o := range objects {
		other.put(o)
	}
	l.api.kinds[definitionsPath].put(fmt.Sprintf(definitionHead, false, true, "True"))
	l.api.cut(false)
	return other
}

const definitionHead = `{"metadata":{"name":"clusternetworkpolicies.policy.networking.k8s.io"},"spec":{"versions":[{"name":"v1alpha2","served":%v},{"name":"v1beta1","served":%v}]},"status":{"conditions":[{"type":"Established","status":%q}]}}`

// An update of the CustomResourceDefinition stops serving the version that the agent reads. The policies
// stay in force, and the agent says why. They go with their objects, or with the definition.
func TestPolicyInAnotherVersion(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.kind(policies.ClusterNetworkPolicies).put(denyAll)
	definitions := l.api.kinds[definitionsPath]
	definitions.put(fmt.Sprintf(definitionHead, true, false, "True"))
	l.start()
	l.awaitJudged(webAddr, true)
	other := l.reversion(denyAll)
	l.awaitProblem(policyUnfollowed)
	time.Sleep(5 * 100 * time.Millisecond) // the agent looks again, several times
	const want = "only in version v1beta1, and this release reads v1alpha2"
	if text := l.trouble.mine()[policyUnfollowed]; !l.judged(webAddr) || !strings.Contains(text, want) {
		t.Fatalf("judged: %v, problem %q", l.judged(webAddr), text)
	}
	l.policy("closed", `{"podSelector":{"matchLabels":{"app":"db"}}}`)
	l.pod("n1", "db-0", "app=db", nextAddr)
	l.awaitJudged(nextAddr, true) // changes of other kinds are followed
	other.remove("/all")
	l.awaitJudged(webAddr, false)
	l.await("no problem", func() bool { return l.trouble.mine()[policyUnfollowed] == "" })
}

// An agent that starts then does not treat the policies as deleted, until the definition is deleted.
func TestPolicyStartsInAnotherVersion(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.kind(policies.ClusterNetworkPolicies).put(denyAll)
	l.api.kinds[definitionsPath].put(fmt.Sprintf(definitionHead, true, false, "True"))
	l.start()
	l.awaitJudged(webAddr, true)
	l.stop()
	l.reversion(denyAll)
	l.start()
	l.awaitProblem(policyUnfollowed)
	time.Sleep(5 * 100 * time.Millisecond)
	if text := l.trouble.mine()[policyUnfollowed]; !l.judged(webAddr) || !strings.Contains(text, "stay as they were when the agent started") {
		t.Fatalf("judged: %v, problem %q", l.judged(webAddr), text)
	}
	if side := l.decision(policymirror.Pod{Namespace: "shop", Name: "new"}); len(side.Chains) == 0 {
		t.Errorf("an ADD decides %+v", side)
	}
	l.api.kinds[definitionsPath].remove("/clusternetworkpolicies.policy.networking.k8s.io")
	l.awaitJudged(webAddr, false)
	l.await("no problem", func() bool { return l.trouble.mine()[policyUnfollowed] == "" })
}

// An API server that lost its database has no definition either, but this does not count as a deletion.
func TestPolicyOfAnEmptyServerWithoutCRD(t *testing.T) {
	l := newPolicyLab(t)
	cluster := l.kind(policies.ClusterNetworkPolicies)
	l.pod("n1", "web-0", "app=web", webAddr)
	cluster.put(denyAll)
	l.start()
	l.awaitJudged(webAddr, true)
	l.api.say(func(s *apiServer) { s.omit, cluster.absent = func(string) bool { return true }, true })
	l.api.cut(false)
	l.awaitProblem(policyUnfollowed)
	time.Sleep(5 * 100 * time.Millisecond)
	if !l.judged(webAddr) {
		t.Error("the policy went with the database")
	}
}

// With the role of an earlier manifest the agent may not look for the definition. In a cluster without a
// definition nothing is wrong. Existing policies stay in force when their kind is removed.
func TestPolicyWithAnEarlierRole(t *testing.T) {
	l := newPolicyLab(t)
	cluster := l.kind(policies.ClusterNetworkPolicies)
	l.api.say(func(s *apiServer) { s.kinds[definitionsPath].refuse, cluster.absent = http.StatusForbidden, true })
	l.pod("n1", "web-0", "app=web", webAddr)
	l.start()
	l.await("the first program", func() bool { return l.programs() > 0 })
	time.Sleep(5*100*time.Millisecond + 2*lossSettles)
	if problems := l.trouble.problems.All(); len(problems) > 0 {
		t.Error(problems)
	}
	cluster.put(denyAll)
	l.api.say(func(*apiServer) { cluster.absent = false })
	l.awaitJudged(webAddr, true)
	l.api.say(func(*apiServer) { cluster.absent = true })
	l.api.cut(false)
	l.awaitProblem(policyUnfollowed)
	time.Sleep(5 * 100 * time.Millisecond)
	if text := l.trouble.mine()[policyUnfollowed]; !l.judged(webAddr) || !strings.Contains(text, "apply its ClusterRole") {
		t.Errorf("judged: %v, problem %q", l.judged(webAddr), text)
	}
}

// With that role, an agent that starts while the cluster has the policies in another version only does not treat
// them as deleted.
func TestPolicyStartsInAnotherVersionWithAnEarlierRole(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.kind(policies.ClusterNetworkPolicies).put(denyAll)
	l.start()
	l.awaitJudged(webAddr, true)
	l.stop()
	l.reversion(denyAll)
	l.api.say(func(s *apiServer) {
		s.kinds[definitionsPath].refuse = http.StatusForbidden
		s.discovery = map[string]string{
			"/apis/policy.networking.k8s.io":          `{"kind":"APIGroup","name":"policy.networking.k8s.io","versions":[{"version":"v1alpha1"},{"version":"v1beta1"}]}`,
			"/apis/policy.networking.k8s.io/v1alpha1": `{"kind":"APIResourceList","resources":[{"name":"adminnetworkpolicies"}]}`,
			"/apis/policy.networking.k8s.io/v1beta1":  `{"kind":"APIResourceList","resources":[{"name":"clusternetworkpolicies"}]}`,
		}
	})
	l.start()
	l.awaitProblem(policyUnfollowed)
	time.Sleep(5 * 100 * time.Millisecond)
	if text := l.trouble.mine()[policyUnfollowed]; !l.judged(webAddr) || !strings.Contains(text, "only in version v1beta1") {
		t.Errorf("judged: %v, problem %q", l.judged(webAddr), text)
	}
	l.api.kinds[otherVersionPath].remove("/all")
	l.awaitJudged(webAddr, false)
}
