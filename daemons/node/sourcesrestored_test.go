// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/record"
)

// The agent puts back what another program changed in the check of sources, and wakes a dormant table.
func TestSourcesRestored(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	r := l.added("web-0", webAddr)
	r.Policed.Link = "veth0"
	d := record.New(l.dir)
	must(t, d.Write(r))
	d.Close()
	l.policy("closed", forWeb)
	l.start()
	l.awaitJudged(webAddr, true)
	l.await("the elements of the pod", func() bool { return strings.Contains(l.table(), `"veth0" . `+webAddr) })
	for _, damage := range []string{
		"add table inet patchbay { flags dormant; }",
		"flush set inet patchbay policy_ownsource",
		"flush set inet patchbay policy_source4",
		"insert rule inet patchbay policy_sources accept",
		"insert rule inet patchbay policy_sources_other accept",
	} {
		l.rest()
		whole := l.table()
		runNFT(t, damage)
		l.await("the table after "+damage, func() bool {
			now := l.table()
			return !strings.Contains(now, "dormant") && sameRules(now, whole)
		})
	}
}
