// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/resident"
)

// nodeService is the service name of a Kubernetes node's agent. It is repeated here because
// patchbay does not link package node.
const nodeService = "node"

// silence is the age of a report at which the agent counts as dead. A running agent writes a report
// every minute.
const silence = 3 * time.Minute

// nodeAgent returns the problems in the report of a Kubernetes node's agent. It reads the report's
// file, because it cannot know at which address the agent serves its metrics.
func nodeAgent(_ context.Context, n *Node) (found []Finding, err error) {
	const start = "look at its pod: kubectl --namespace kube-system logs --selector app.kubernetes.io/name=patchbay; if it is gone for good: docs/kubernetes.md, Uninstall"
	r, age, err := resident.ReadReport(n.Paths, nodeService)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(n.Paths.State, nodeService)); err != nil {
			return nil, nil // there is no agent here
		}
		return []Finding{warning("the agent of this Kubernetes node has reported nothing since the boot: it does not run, or is of an earlier release", start)}, nil
	}
	if err != nil {
		return nil, err
	}
	said := age.Round(time.Second)
	if age > silence {
		found = append(found, warning(fmt.Sprintf("the agent of this Kubernetes node was last heard of %v ago: pods start and have their network, but nothing follows the other nodes", said), start))
	}
	if r.Unready != "" {
		found = append(found, problem(fmt.Sprintf("pods cannot start on this node, as its agent said %v ago: %s", said, r.Unready), "do what the text says; docs/kubernetes.md"))
	}
	for _, p := range r.Problems {
		finding, whose := problem, "this node"
		if p.Elsewhere {
			finding, whose = warning, "another node"
		}
		if p.Text != r.Unready {
			found = append(found, finding(fmt.Sprintf("the agent reported %v ago about %s: %s: %s", said, whose, p.Reason, p.Text), "do what the text says; docs/kubernetes.md"))
		}
	}
	return found, nil
}
