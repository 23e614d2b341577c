// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"time"

	policymirror "github.com/patchbay-net/patchbay/internal/policy/mirror"
)

// firstWait is how long a node without pods waits for its policies before it takes pods. Pods that start
// before the policies are known are isolated for a moment; the wait spares most pods that moment.
const firstWait = 10 * time.Second

// errPoliciesUnknown means that a node should wait for its policies before it takes its first pods.
var errPoliciesUnknown = errors.New("the network policies are not known yet: the first pods of this node wait for them, but no longer than 10 s")

// knows reports whether ADDs have policies to decide by, however old.
func (n *networkPolicy) knows() bool {
	return n.choices.Off || n.ready.Load() || policymirror.Known(n.paths)
}

// isolate makes ADDs isolate all pods if the policies were never known on this node, unless the user wants
// such pods to be open.
func (n *networkPolicy) isolate() error {
	n.writing.Lock()
	defer n.writing.Unlock()
	switch {
	case n.knows():
		return nil
	case !n.choices.UnknownOpen:
		return policymirror.Isolate(n.paths)
	case policymirror.Unknown(n.paths): // of a run with the other choice
		return policymirror.Remove(n.paths)
	}
	return nil
}

// admit returns why the first pods of this node cannot start yet. They do not wait for ever. If there may
// be pods already, nothing waits.
func (n *networkPolicy) admit(first bool) error {
	switch {
	case n.knows():
		n.status.unknown(nil)
	case time.Since(n.started) > n.patience:
		n.status.unknown(n.unknown())
	case first:
		return errPoliciesUnknown
	}
	return nil
}

// unknown says what happens to new pods, and what is missing.
func (n *networkPolicy) unknown() error {
	what := "new pods are isolated"
	if n.choices.UnknownOpen {
		what = "new pods start without network policies, which let everything pass"
	}
	var missing []string
	for _, l := range n.cluster.Losses() {
		missing = append(missing, l.Kind.String()+": "+l.Err.Error())
	}
	return fmt.Errorf("%s, because the policies of the cluster are not known on this node yet: see that the API server answers, and that the agent's role may list them\n%s",
		what, strings.Join(missing, "\n"))
}

// unknown tells that the policies were never known on this node.
func (s *policyStatus) unknown(err error) { s.trouble.set(policyUnknown, err) }
