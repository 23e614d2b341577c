// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
	policymirror "github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
)

// The first pods of a node wait for its policies, but not for ever, and then they are isolated.
func TestPolicyBeforeTheFirstPod(t *testing.T) {
	l := newPolicyLab(t)
	pods := l.kind(policies.Pods)
	l.api.say(func(*apiServer) { pods.absent = true })
	l.start()
	l.awaitProblem(policyUnfollowed)
	l.await("a node that waits for policies", func() bool { return errors.Is(l.Ready(), errPoliciesUnknown) })
	if l.conf() != "" {
		t.Error("it has the network without them")
	}
	l.awaitIsolated(true)
	l.api.say(func(*apiServer) { pods.absent = false })
	l.await("the network", func() bool { return l.Ready() == nil && l.conf() != "" })
	if !policymirror.Known(l.opts.Paths) {
		t.Error("the network came before the mirror")
	}
	l.awaitIsolated(false)
	l.stop()
	l.Agent.policy.ready.Store(false)
	if err := l.Agent.policy.admit(true); err != nil {
		t.Errorf("a node with a mirror waits: %v", err)
	}
	must(t, policymirror.Remove(l.opts.Paths))
	if l.Agent.policy.patience = 0; l.Agent.policy.admit(true) != nil {
		t.Error("it waits for ever")
	}
}

// awaitIsolated waits until an ADD isolates, or does not isolate, a pod that the mirror does not have.
func (l *policyLab) awaitIsolated(want bool) {
	l.Helper()
	l.await(fmt.Sprint("a new pod is isolated: ", want), func() bool {
		d, _ := policymirror.Read(l.opts.Paths, policymirror.Pod{Namespace: "shop", Name: "new", UID: "uid-new"})
		return d.Sides[policy.Ingress].Isolated == want && d.Sides[policy.Egress].Isolated == want
	})
}

// blind starts an agent that cannot list pods, as with a role without this right, on a node that has its
// network and has lost its mirror.
func (l *policyLab) blind(change ...func(*Options)) {
	l.Helper()
	l.start()
	l.await("the network", func() bool { return l.conf() != "" })
	l.stop()
	must(l.T, policymirror.Remove(l.opts.Paths))
	pods := l.kind(policies.Pods)
	l.api.say(func(*apiServer) { pods.absent = true })
	l.impatient = true
	l.start(change...)
}

// A node whose agent may not list pods isolates new pods, also if there is a network's file of an earlier
// run. It says so, and opens them when it knows the policies. Pods that ran before are left alone.
func TestPolicyUnknown(t *testing.T) {
	l := newPolicyLab(t)
	l.blind()
	l.awaitIsolated(true)
	l.added("old", nextAddr)
	r := l.added("new", webAddr)
	r.Policed.Early = true
	d := record.New(l.dir)
	defer d.Close()
	must(t, d.Write(r))
	fw := nft.Open(l.dir)
	defer fw.Close() //nolint:errcheck // committed
	must(t, reclose(t.Context(), l.opts.Paths, fw))
	if !closed(webAddr) || closed(nextAddr) {
		t.Errorf("closed: the new pod %v, the old one %v", closed(webAddr), closed(nextAddr))
	}
	l.awaitProblem(policyUnknown)
	if text := l.trouble.mine()[policyUnknown]; !strings.Contains(text, "new pods are isolated") || !strings.Contains(text, "pods: ") {
		t.Error(text)
	}
	l.api.say(func(*apiServer) { l.api.kinds.of(policies.Pods).absent = false })
	l.await("the pod is open", func() bool { return !closed(webAddr) })
	l.await("no problem", func() bool { return l.trouble.mine()[policyUnknown] == "" })
	l.awaitIsolated(false)
}

// With the choice open, nothing is isolated, also after a run with the other choice.
func TestPolicyUnknownOpen(t *testing.T) {
	l := newPolicyLab(t)
	l.blind()
	l.awaitIsolated(true)
	l.stop()
	l.start(func(o *Options) { o.NetworkPolicy.UnknownOpen = true })
	l.awaitIsolated(false)
	l.awaitProblem(policyUnknown)
	if text := l.trouble.mine()[policyUnknown]; !strings.Contains(text, "start without network policies") {
		t.Error(text)
	}
}
