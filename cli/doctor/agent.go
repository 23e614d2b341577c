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

// nodeService is the agent of a Kubernetes node (package node, which patchbay does not link).
const nodeService = "node"

// silence is longer than an agent that lives is silent: it reports each minute.
const silence = 3 * time.Minute

// nodeAgent prints what the agent of a Kubernetes node reports. It cannot be asked: it may be in
// a container, and serve its metrics elsewhere or nowhere.
func nodeAgent(_ context.Context, n *Node) (found []Finding, err error) {
	const start = "look at its pod: kubectl --namespace kube-system logs --selector app.kubernetes.io/name=patchbay; if it is gone for good: patchbayd node clean"
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
			found = append(found, finding(fmt.Sprintf("the agent said %v ago of %s: %s: %s", said, whose, p.Reason, p.Text), "do what the text says; docs/kubernetes.md"))
		}
	}
	return found, nil
}
