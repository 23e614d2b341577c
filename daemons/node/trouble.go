// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// The agent itself finds problems with these reasons; Make finds the others.
const (
	agentHangs       plan.Reason = "AgentHangs"
	cacheFailed      plan.Reason = "CacheFailed"
	kernelUnwatched  plan.Reason = "KernelNotWatched"
	pathsUnprobed    plan.Reason = "PathsNotProbed"
	offloadOff       plan.Reason = "ChecksumOffloadOff"
	directDropped    plan.Reason = "DirectRouteDropped"
	installFailed    plan.Reason = "InstallFailed"
	meshFailed       plan.Reason = "MeshFailed"
	networkFailed    plan.Reason = "NetworkFileFailed"
	networkHidden    plan.Reason = "NetworkFileHidden"
	podCIDRChanged   plan.Reason = "PodCIDRChanged"
	keyUnpublished   plan.Reason = "WireGuardKeyNotPublished"
	keyReplaced      plan.Reason = "WireGuardKeyReplaced"
	masqueradeConfig plan.Reason = "MasqueradeConfigFailed"
	reportFailed     plan.Reason = "ReportFailed"
	egressFailed     plan.Reason = "EgressAddressFailed"
	namespacesFailed plan.Reason = "NamespacesNotFollowed"
	apiFailed        plan.Reason = "APIServerFailed"
	clockOff         plan.Reason = "ClockOff"
)

// trouble has the current problems. It logs a problem when it appears, changes or ends. Events and
// metrics come from it.
type trouble struct {
	problems resident.Problems
	changed  func()

	mu    sync.Mutex
	own   map[plan.Reason]error // of the agent
	found []plan.Problem        // of the Nodes
	self  string
}

// set sets a problem of the agent itself, or removes it if err is nil.
func (t *trouble) set(reason plan.Reason, err error) {
	t.problems.Set(string(reason), err)
	t.mu.Lock()
	if t.own == nil {
		t.own = map[plan.Reason]error{}
	}
	was := t.own[reason]
	if t.own[reason] = err; err == nil {
		delete(t.own, reason)
	}
	t.mu.Unlock()
	if fmt.Sprint(was) == fmt.Sprint(err) {
		return // report sets a problem itself
	}
	t.changed()
}

// Warn receives the warnings of the Fabric (mesh.Options.Warn).
func (a *Agent) Warn(err error) {
	if errors.Is(err, mesh.ErrOffload) {
		a.trouble.set(offloadOff, err) // until the agent ends: Probe tests each peer once
		return
	}
	a.opts.Log("%v", err)
}

// Detour receives why the Fabric does not use direct routes (mesh.Options.Detour).
func (a *Agent) Detour(err error) { a.trouble.set(directDropped, err) }

// nodes sets the problems of the Nodes.
func (t *trouble) nodes(self string, list []plan.Problem) {
	byNode := map[string]error{}
	for i := range list {
		key := list[i].Nodes[0] + ": " + string(list[i].Reason)
		byNode[key] = errors.Join(byNode[key], errors.New(list[i].Text))
	}
	t.problems.SetAll("Node", byNode)
	t.mu.Lock()
	t.found, t.self = list, self
	t.mu.Unlock()
	t.changed()
}

// mine returns the problems of this node, by reason. The agents of other Nodes report theirs, so
// that a bad Node does not get an Event from each agent.
func (t *trouble) mine() map[plan.Reason]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[plan.Reason]string{}
	for i := range t.found {
		if p := &t.found[i]; p.Concerns(t.self) {
			out[p.Reason] = join(out[p.Reason], p.Text)
		}
	}
	for reason, err := range t.own {
		out[reason] = join(out[reason], err.Error())
	}
	return out
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "\n" + b
}

// reasons returns what count does, for the metrics of all agents.
func (t *trouble) reasons() map[string]int {
	out := map[string]int{}
	for reason, n := range t.count() {
		out[string(reason)] = n
	}
	return out
}

// count returns the number of problems of all Nodes, by reason.
func (t *trouble) count() map[plan.Reason]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[plan.Reason]int{}
	for reason := range maps.Keys(t.own) {
		out[reason]++
	}
	for i := range t.found {
		out[t.found[i].Reason]++
	}
	return out
}
