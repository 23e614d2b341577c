// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// doctor prints the report of a Kubernetes node's agent with its age, and warns if the report is
// too old.
func TestNodeAgent(t *testing.T) {
	b := newBench(t)
	b.healthy("agent") // no agent
	b.must(os.MkdirAll(filepath.Join(b.paths.State, nodeService), 0o700))
	b.finds("agent", "warning: reported nothing since the boot")
	b.must(resident.Report{}.Write(b.paths, nodeService))
	b.healthy("agent")
	b.must(resident.Report{Unready: "no podCIDR yet", Problems: []resident.Reported{
		{Reason: "NoPodCIDR", Text: "no podCIDR yet"}, {Reason: "ClockOff", Text: "set the clock"}, {Reason: "PodCIDROverlaps", Text: "of n7", Elsewhere: true},
	}}.Write(b.paths, nodeService))
	b.finds("agent", "problem: pods cannot start on this node, as its agent said 0s ago: no podCIDR yet",
		"problem: the agent reported 0s ago about this node: ClockOff: set the clock", "warning: about another node: PodCIDROverlaps: of n7")
	data, err := json.Marshal(resident.Report{Schema: 1, At: clock.SinceBoot() - time.Hour})
	b.must(err)
	b.must(os.WriteFile(resident.ReportPath(b.paths, nodeService), data, 0o600))
	b.finds("agent", "warning: last heard of 1h0m0s ago")
	b.must(os.WriteFile(resident.ReportPath(b.paths, nodeService), []byte(`{"schema": 2}`), 0o600))
	b.finds("agent", "warning: doctor could not check")
}
