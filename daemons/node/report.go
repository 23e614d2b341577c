// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Service names the agent's directories, below /run/patchbay and /var/lib/patchbay, and its metrics.
const Service = "node"

// mostReported limits the problems in a report, because many Nodes may have the same problem.
const mostReported = 50

// report keeps the file up to date that `patchbay doctor` reads, until ctx ends. It also writes the
// file when nothing has changed, so that the file's age shows whether the agent runs.
func (a *Agent) report(ctx context.Context) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		a.trouble.set(agentHangs, a.Healthy())
		a.trouble.set(reportFailed, a.reported().Write(a.opts.Paths, Service))
		select {
		case <-ctx.Done():
			return
		case <-a.said:
			clock.Sleep(ctx, resident.Settle(0))
		case <-tick.C:
		}
	}
}

// reported returns the current problems, this node's first.
func (a *Agent) reported() (r resident.Report) {
	if err := a.Ready(); err != nil {
		r.Unready = err.Error()
	}
	t := &a.trouble
	t.mu.Lock()
	defer t.mu.Unlock()
	for reason, err := range t.own {
		r.Problems = append(r.Problems, resident.Reported{Reason: string(reason), Text: short(err.Error())})
	}
	for _, mine := range []bool{true, false} {
		for i := range t.found {
			if p := &t.found[i]; p.Concerns(t.self) == mine && len(r.Problems) < mostReported {
				r.Problems = append(r.Problems, resident.Reported{Reason: string(p.Reason), Text: short(p.Text), Elsewhere: !mine})
			}
		}
	}
	return r
}
