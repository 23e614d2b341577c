// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
)

// The agent finds problems of network policies with these reasons.
const (
	policyFailed      plan.Reason = "NetworkPolicyFailed"
	policyBroken      plan.Reason = "NetworkPolicyBroken"
	policyUnfollowed  plan.Reason = "NetworkPolicyNotFollowed"
	policyUnknown     plan.Reason = "NetworkPolicyUnknown"
	policyChanged     plan.Reason = "NetworkPolicyChanged"
	policyBypassed    plan.Reason = "NetworkPolicyBypassed"
	connectionsUncut  plan.Reason = "NetworkPolicyConnectionsLive"
	policiesUnwatched plan.Reason = "NetworkPolicyNotWatched"
	dropsUntold       plan.Reason = "DroppedPacketsUntold"
	dropsRefused      plan.Reason = "DroppedPacketsRefused"
	flowsUnread       plan.Reason = "FlowsNotRead"
	recordsUnwatched  plan.Reason = "NewPodsNotWatched"
)

const (
	// settled is how long a problem must last before it is reported, if it is normal for a moment: the labels of a new pod
	// may come later than its ADD.
	settled = 30 * time.Second

	// mostBroken limits the problems in a text.
	mostBroken = 10
)

// policyStatus says how well network policies are in force: as problems and as metrics.
type policyStatus struct {
	trouble *trouble
	self    string
	cluster *policies.Cluster

	programCounts
	follows  following
	disputes disputes

	mu      sync.Mutex
	program *programStatus
	since   map[policy.Problem]time.Time
}

// programStatus is what metrics and Events say about the last program.
type programStatus struct {
	at                     time.Time // when it came into force
	pods, policies, chains int
	problems               []policy.Problem
	mine                   []policy.Problem // that concern pods of this node
}

// failed tells a failure apart from programs.
func (s *policyStatus) failed(err error) { s.trouble.set(policyFailed, err) }

// made stores the result of a program.
func (s *policyStatus) made(p *policy.Program, took time.Duration, mirrored, loaded, records error) {
	s.count(took, map[string]error{"mirror": mirrored, "kernel": loaded, "records": records})
	s.failed(errors.Join(mirrored, loaded, records))
	now := summary(p, s.cluster.Problems(), s.self)
	s.mu.Lock()
	if loaded == nil || s.program == nil {
		s.program = now
	}
	if loaded == nil {
		s.program.at = time.Now()
	}
	s.mu.Unlock()
	s.tell()
}

// summary returns what metrics and Events say about a program, and about objects that could not be read.
func summary(p *policy.Program, unread []policy.Problem, self string) *programStatus {
	out := &programStatus{pods: len(p.Pods), chains: len(p.Chains), problems: slices.Concat(p.Problems, unread)}
	seen := map[string]bool{}
	for i := range p.Chains {
		seen["policy "+p.Chains[i].Policy] = true
	}
	out.policies = len(seen)
	for i := range p.Pods {
		namespace, _, _ := strings.Cut(p.Pods[i].Name, "/")
		seen["pod "+p.Pods[i].Name], seen["namespace "+namespace] = true, true
	}
	seen["node "+self] = true
	for _, problem := range out.problems {
		object := problem.Object
		if isPolicy(problem) {
			_, name, _ := strings.Cut(object, " ")
			object = "policy " + name
		}
		if seen[object] {
			out.mine = append(out.mine, problem)
		}
	}
	return out
}

// bypassed tells whether kube-proxy goes around policies that pods of this node have.
func (s *policyStatus) bypassed() {
	s.mu.Lock()
	selected := s.program != nil && s.program.chains > 0
	s.mu.Unlock()
	var err error
	if selected {
		_, err = nl.Retry(func() (netlink.Link, error) { return netlink.LinkByName(enforce.IPVSLink) })
	}
	switch {
	case !selected || nl.IsNotFound(err):
		err = nil
	case err == nil:
		err = errors.New(enforce.Bypassed + ": " + enforce.Unbypassed)
	}
	s.trouble.set(policyBypassed, err)
}

// touched counts a change of another program.
func (s *policyStatus) touched() {
	s.touches.Inc()
	s.disputes.note()
	s.tell()
}

// tell reports the two problems that last until somebody corrects them: objects that are not understood, and rules that
// another program changes.
func (s *policyStatus) tell() {
	s.mu.Lock()
	broken := s.broken(time.Now())
	s.mu.Unlock()
	s.trouble.set(policyBroken, broken)
	s.trouble.set(policyChanged, s.fought())
}

// broken returns the objects that concern pods of this node and are not understood.
func (s *policyStatus) broken(now time.Time) error {
	if s.program == nil {
		return nil
	}
	since, texts := map[policy.Problem]time.Time{}, []string(nil)
	for _, p := range s.program.mine {
		if since[p] = s.since[p]; since[p].IsZero() {
			since[p] = now
		}
		if !strings.HasPrefix(p.Object, "pod ") || now.Sub(since[p]) >= settled {
			texts = append(texts, p.String())
		}
	}
	s.since = since
	return firstOf(texts)
}

// firstOf returns an error with the first of the texts, or nil if there is none.
func firstOf(texts []string) error {
	if len(texts) == 0 {
		return nil
	}
	if more := len(texts) - mostBroken; more > 0 {
		texts = append(texts[:mostBroken], fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(texts, "\n"))
}

// brokenPolicies returns the policies that are not understood and that pods of this node have, with each reason.
func (s *policyStatus) brokenPolicies() (list []policy.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program == nil {
		return nil
	}
	for _, p := range s.program.mine {
		if isPolicy(p) {
			list = append(list, p)
		}
	}
	return list
}

func isPolicy(p policy.Problem) bool {
	kind, _, _ := strings.Cut(p.Object, " ")
	return kind == policy.KindNetworkPolicy || kind == policy.KindClusterNetworkPolicy
}

// fought returns an error if other programs change the policies again and again.
func (s *policyStatus) fought() error {
	if !s.disputes.lasts() {
		return nil
	}
	return errors.New("another program changes the network policies in the table inet patchbay again and again, and each time the agent puts them back: " +
		"look which one with `nft monitor`; only one agent may run on a node")
}
